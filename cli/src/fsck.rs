//! `pando fsck [META]`: every invariant of the metadata, on a running server or on a folder at rest.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use serde_json::json;

use crate::address::{Connection, Which};
use crate::output;

/// Check the metadata; of a stopped server too
#[derive(Debug, clap::Args)]
pub struct Fsck {
    #[command(flatten)]
    which: Which,
    /// Seconds that it may take
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, env = "PANDO_FSCK_TIMEOUT")]
    timeout: u64,
}

/// Runs the verb. The exit code is 1 when something is broken.
pub async fn run(args: &Fsck, as_json: bool) -> anyhow::Result<ExitCode> {
    let connection = Connection::open_or_start(&args.which).await?;
    let report = connection.meta.fsck(Duration::from_secs(args.timeout)).await;
    connection.close().await?;
    let report = report.map_err(|e| anyhow!(e.detail))?;
    let clean = report.problems.is_empty();
    let json = json!({
        "clean": clean,
        "inodes": report.inodes,
        "problems": report.problems,
        "orphans": report.orphans,
        "dead_segments": report.dead_segments,
    });
    let mut text: String = report.problems.iter().map(|p| format!("{p}\n")).collect();
    text += &format!(
        "{}: {} inodes checked, {} problems; waiting to be collected: {} orphans, {} dead segments",
        if clean { "clean" } else { "DAMAGED" },
        report.inodes,
        report.problems.len(),
        report.orphans,
        report.dead_segments
    );
    output::print(as_json, &json, &text)?;
    Ok(ExitCode::from(u8::from(!clean)))
}
