//! `pando`: the one binary. Parses the command line, runs one verb, turns its outcome into an exit code.
//!
//! Not here: what a verb does (a file each). Invariants: exit codes are 0 done, 1 failed, 2 usage; an error is one
//! sentence on stderr that begins with `pando: ` and says what to do next; with `--json` stdout holds one JSON value.

// A build with fewer verbs uses less of the files they share.
#![cfg_attr(not(all(feature = "server", feature = "mount")), allow(dead_code))]

mod address;
mod data;
mod fsck;
mod gc;
mod log;
mod mounts;
mod node;
mod output;
mod shard;
mod size;
mod status;
mod stop;
mod umount;

#[cfg(feature = "mount")]
mod daemon;
#[cfg(feature = "mount")]
mod front;
#[cfg(feature = "mount")]
mod mount;
#[cfg(feature = "mount")]
mod mountpoint;
#[cfg(feature = "server")]
mod server;
#[cfg(all(feature = "mount", feature = "server"))]
mod up;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// A distributed file system for AI training
#[derive(Debug, Parser)]
#[command(name = "pando", version, propagate_version = true, disable_help_subcommand = false)]
struct Cli {
    /// Print JSON instead of text
    #[arg(long, global = true, env = "PANDO_JSON")]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    #[cfg(all(feature = "mount", feature = "server"))]
    Up(up::Up),
    #[cfg(feature = "server")]
    Server(server::Server),
    #[cfg(feature = "mount")]
    Mount(mount::Mount),
    Umount(umount::Umount),
    Status(status::Status),
    Node(node::Node),
    Shard(shard::Shard),
    Fsck(fsck::Fsck),
    Gc(gc::Gc),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match log::start().and_then(|()| run(&cli)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pando: {}", sentence(&error));
            ExitCode::from(FAILED)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    match &cli.verb {
        #[cfg(all(feature = "mount", feature = "server"))]
        Verb::Up(args) => up::run(args, cli.json),
        #[cfg(feature = "server")]
        Verb::Server(args) => wait(server::run(args, cli.json)),
        #[cfg(feature = "mount")]
        Verb::Mount(args) => mount::run(args, cli.json),
        Verb::Umount(args) => umount::run(args),
        Verb::Status(args) => wait(status::run(args, cli.json)),
        Verb::Node(args) => wait(node::run(args, cli.json)),
        Verb::Shard(args) => wait(shard::run(args, cli.json)),
        Verb::Fsck(args) => wait(fsck::run(args, cli.json)),
        Verb::Gc(args) => wait(gc::run(args, cli.json)),
    }
}

/// Runs a verb that talks to others.
fn wait<T>(verb: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start threads; is a limit of this user reached (`ulimit -u`)?")?.block_on(verb)
}

/// An error and its causes as one line.
fn sentence(error: &anyhow::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What clap has to say: help and version to stdout, a mistake as one sentence.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print!("{error}");
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{error}");
            ExitCode::from(USAGE)
        }
        _ => {
            eprintln!("pando: {}", mistake(&error.to_string()));
            ExitCode::from(USAGE)
        }
    }
}

/// The first paragraph of clap's message, without its label.
fn mistake(message: &str) -> String {
    let first = message.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.trim_start_matches("error: ").split_whitespace().collect();
    format!("{}; `pando help` shows how it is written", words.join(" "))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_has_an_environment_variable() {
        for verb in Cli::command().get_subcommands() {
            for flag in verb.get_arguments().filter(|a| a.get_long().is_some() && !a.is_global_set()) {
                let silent = ["help", "version", "force"].contains(&flag.get_id().as_str());
                assert!(silent || flag.get_env().is_some(), "{} --{}", verb.get_name(), flag.get_id());
            }
        }
    }

    #[test]
    fn a_mistake_is_one_sentence() {
        let message =
            "error: the following required arguments were not provided:\n  <META>\n  <DIR>\n\nUsage: pando mount";
        let expected =
            "the following required arguments were not provided: <META> <DIR>; `pando help` shows how it is written";
        assert_eq!(mistake(message), expected);
    }
}
