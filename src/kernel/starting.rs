//! A kernel that has been asked for and is not heard of yet.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::agent::{AgentError, KernelInfo, Routes, lock};
use crate::link::LinkError;

/// A kernel on its way. Cells may be sent behind it: the supervisor keeps them until it is ready.
pub struct KernelStarting {
    receiver: oneshot::Receiver<Result<KernelInfo, String>>,
    routes: Arc<Mutex<Routes>>,
    limit: Duration,
}

impl KernelStarting {
    pub(super) fn new(
        receiver: oneshot::Receiver<Result<KernelInfo, String>>,
        routes: Arc<Mutex<Routes>>,
        limit: Duration,
    ) -> Self {
        Self {
            receiver,
            routes,
            limit,
        }
    }

    /// Waits until it is ready. Asked once, to its end.
    ///
    /// # Errors
    /// With what is known, when it does not get ready.
    pub async fn ready(&mut self) -> Result<KernelInfo, AgentError> {
        // Twice: the broker itself may have been stopped meanwhile, and the answer be on its way.
        for _ in 0..2 {
            match tokio::time::timeout(self.limit / 2, &mut self.receiver).await {
                Ok(Ok(Ok(info))) => return Ok(info),
                Ok(Ok(Err(reason))) => return Err(AgentError::KernelStart(reason)),
                Ok(Err(_)) => return Err(lock(&self.routes).gone.clone().unwrap_or(LinkError::Gone).into()),
                Err(_) => {}
            }
        }
        Err(AgentError::Silent)
    }
}
