//! `pando up [MOUNTPOINT]`: a metadata server, a local object store and a mount in one process.
//!
//! The same parts as `pando server` and `pando mount`, wired together. Order: check all, start the server, mount; and back:
//! unmount, store what is left, stop the server.

use std::path::PathBuf;
use std::process::ExitCode;

use pando_metaserver::{Config, Server};
use serde_json::json;

use crate::address::publish;
use crate::data::Data;
use crate::front::{Front, Ready, program};
use crate::mountpoint::Mountpoint;
use crate::server::Settings;
use crate::stop::Stop;
use crate::{daemon, wait};

/// Start everything on this machine and mount it
#[derive(Debug, clap::Args)]
pub struct Up {
    /// Where to mount: an empty directory, or a new name
    #[arg(value_name = "MOUNTPOINT", default_value = "./mnt", env = "PANDO_MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Folder of the data: metadata, and file bytes unless --object-store says otherwise [default: ~/.local/share/pando]
    #[arg(long, value_name = "DIR", env = "PANDO_DATA")]
    data: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    front: Front,
}

/// Runs the verb.
pub fn run(args: &Up, as_json: bool) -> anyhow::Result<ExitCode> {
    if args.front.daemon && !daemon::is_child() {
        return daemon::start();
    }
    if args.front.daemon {
        daemon::leave_terminal()?;
    }
    let data = Data::at(args.data.as_deref())?;
    let point = Mountpoint::check(&args.mountpoint)?;
    point.must_not_hide(data.folder())?;
    let config = args.settings.for_data(&data)?;
    wait(serve(args, &data, &point, config, as_json))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: &Up, data: &Data, point: &Mountpoint, config: Config, as_json: bool) -> anyhow::Result<()> {
    let mut stop = Stop::listen()?;
    let first_start = data.prepare(config.object_store == Settings::local_store(data)?)?;
    let server = Server::start(config).await?;
    drop(first_start);
    let served = async {
        let address = server.address().to_string();
        let _published = publish(data, &address, server.cluster())?;
        let ready = ready(args, data, point, &address, as_json);
        args.front.serve(&address, Some(server.local()), point, &ready, &mut stop).await
    };
    let served = served.await;
    let stopped = server.shutdown().await;
    served?;
    Ok(stopped?)
}

fn ready(args: &Up, data: &Data, point: &Mountpoint, address: &str, as_json: bool) -> Ready {
    let (shown, folder, pando) = (point.path().display(), data.folder().display(), program());
    let stop = if args.front.daemon { String::new() } else { "Ctrl-C, or ".into() };
    let text = format!(
        "pando is ready at {shown}: data in {folder}, metadata server at {address}; stop it with {stop}`{pando} umount {shown}`\n\
         try next: copy something in with `cp -r`, then `{pando} status --data {folder}`; a second mount: `{pando} mount {address} DIR`"
    );
    let json = json!({
        "ready": true,
        "mountpoint": point.path().to_string_lossy(),
        "data": data.folder().to_string_lossy(),
        "address": address,
        "pid": std::process::id(),
    });
    Ready { text, json, as_json, log: data.log() }
}
