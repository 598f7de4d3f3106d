//! Log lines on stderr; `PANDO_LOG` chooses which, in the syntax of `RUST_LOG`.
//!
//! Without it: until a verb serves, next to nothing, for what goes wrong then is told by its one error.

use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

const STARTING: &str = "error,pando::mountpoint=warn";
/// Of all our crates (a name stands for all that begin with it) warnings, of the libraries what a person must look at.
const SERVING: &str = "error,pando=warn";

/// Changes what is logged, once the process serves.
static RAISE: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Starts logging.
pub fn start() -> anyhow::Result<()> {
    let chosen = match std::env::var("PANDO_LOG") {
        Ok(text) => Some(EnvFilter::try_new(&text).map_err(|e| {
            anyhow::anyhow!("PANDO_LOG is not understood ({e}); write it like `info` or `warn,pando_client=debug`")
        })?),
        Err(_) => None,
    };
    let fixed = chosen.is_some();
    let filter = chosen.unwrap_or_else(|| EnvFilter::new(STARTING));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    let builder = builder.with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    if !fixed {
        let raise = move || {
            // It fails only when the subscriber is gone, and with it everything to log.
            handle.reload(EnvFilter::new(SERVING)).ok();
        };
        RAISE.set(Box::new(raise)).ok();
    }
    Ok(())
}

/// From now on the process serves: warnings have nobody else to tell them.
pub fn serving() {
    if let Some(raise) = RAISE.get() {
        raise();
    }
}
