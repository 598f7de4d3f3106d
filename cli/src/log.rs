//! Log lines on stderr; `PANDO_LOG` chooses which, in the syntax of `RUST_LOG`.

use tracing_subscriber::EnvFilter;

/// A process that serves: warnings of ours, of the libraries only what a person must look at.
const SERVING: &str = "error,pando=warn,pando_metaserver=warn,pando_raft=warn,pando_engine=warn,pando_segments=warn,\
                       pando_rpc=warn,pando_client=warn,pando_client_fuse=warn";
/// A verb that ends soon tells by its error what went wrong.
const ASKING: &str = "error";

/// Starts logging for a process that serves, or for a verb that ends soon.
pub fn start(serving: bool) -> anyhow::Result<()> {
    let filter = match std::env::var("PANDO_LOG") {
        Ok(text) => EnvFilter::try_new(&text).map_err(|e| {
            anyhow::anyhow!("PANDO_LOG is not understood ({e}); write it like `info` or `warn,pando_client=debug`")
        })?,
        Err(_) => EnvFilter::new(if serving { SERVING } else { ASKING }),
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    Ok(())
}
