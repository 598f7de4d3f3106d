//! Calls to a server of this same process: no socket, no encoding, no switch of threads.
//!
//! Not another kind of server: the same handler answers, under the same timeouts, and stops with its server. A node that is
//! client and server at once (`pando up`) spends most of a call's time on the way otherwise.
//! Invariant: a call to a server that has stopped fails as one to a closed port does.

use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use pando_types::request::{RequestMessage, ResponseMessage};
use tokio_util::sync::CancellationToken;

use crate::server::failed;
use crate::{Handler, RpcError};

/// A server of this process, as its clients in this process reach it.
#[derive(Clone)]
pub struct Local {
    address: Arc<str>,
    handler: Weak<dyn AnyHandler>,
    stop: CancellationToken,
}

/// [`Handler`] for when its type is not known.
pub(crate) trait AnyHandler: Send + Sync {
    fn handle_boxed(self: Arc<Self>, request: RequestMessage) -> BoxFuture<'static, ResponseMessage>;
}

impl<H: Handler> AnyHandler for H {
    fn handle_boxed(self: Arc<Self>, request: RequestMessage) -> BoxFuture<'static, ResponseMessage> {
        Box::pin(async move { self.handle(request).await })
    }
}

impl Local {
    pub(crate) fn new(address: String, handler: Weak<dyn AnyHandler>, stop: CancellationToken) -> Local {
        Local { address: address.into(), handler, stop }
    }

    /// Whether it is the server that listens there.
    pub(crate) fn is_at(&self, address: &str) -> bool {
        *self.address == *address
    }

    /// Carries the request out on the caller's own task.
    pub(crate) async fn call(&self, request: RequestMessage) -> Result<ResponseMessage, RpcError> {
        let Some(handler) = self.handler.upgrade().filter(|_| !self.stop.is_cancelled()) else {
            let source = io::Error::from(io::ErrorKind::ConnectionRefused);
            return Err(RpcError::Connect { address: self.address.to_string(), source });
        };
        let answer = AssertUnwindSafe(handler.handle_boxed(request)).catch_unwind().await;
        Ok(answer.unwrap_or_else(|_| failed("the server failed while it carried out the request")))
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server at {} in this process", self.address)
    }
}
