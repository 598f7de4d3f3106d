//! `pando gc [META]`: collects what nothing refers to, now instead of in the background.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use serde_json::json;

use crate::address::{Connection, Which};
use crate::output;

/// Delete stored data that nothing refers to, now instead of in the background
#[derive(Debug, clap::Args)]
pub struct Gc {
    #[command(flatten)]
    which: Which,
    /// Seconds that it may take
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, env = "PANDO_GC_TIMEOUT")]
    timeout: u64,
}

/// Runs the verb.
pub async fn run(args: &Gc, as_json: bool) -> anyhow::Result<ExitCode> {
    let connection = Connection::open_or_start(&args.which).await?;
    let collected = connection.meta.collect(Duration::from_secs(args.timeout)).await;
    connection.close().await?;
    let collected = collected.map_err(|e| anyhow!(e.detail))?;
    let json = json!({
        "orphans": collected.orphans,
        "dead_segments": collected.dead_segments,
        "leaked_segments": collected.leaked_segments,
        "objects": collected.objects,
    });
    let text = format!(
        "{} objects looked at; deleted {} orphaned inodes, {} dead segments, {} leaked segments",
        collected.objects, collected.orphans, collected.dead_segments, collected.leaked_segments
    );
    output::print(as_json, &json, &text)?;
    Ok(ExitCode::SUCCESS)
}
