//! What is asked of a sandbox by its id. Modal has two generations of them, whose calls differ.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tonic::Code;

use super::control::{CallFailed, Control};
use super::retry::Policy;
use super::router::{Access, Lookup};
use super::wire::client::sandbox_get_command_router_access_request::Target as AccessTarget;
use super::wire::client::{
    GenericResult, SandboxGetCommandRouterAccessRequest, SandboxGetTaskIdRequest, SandboxTerminateRequest,
    SandboxWaitRequest, TaskGetCommandRouterAccessRequest,
};
use crate::environment::Secret;

/// Time between two questions what a sandbox runs as.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Time in which a sandbox is ended.
const TERMINATE: Policy = Policy {
    attempt: Duration::from_secs(10),
    total: Some(Duration::from_secs(20)),
    ..Policy::CONTROL
};

/// Which calls a sandbox answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    Older,
    Newer,
}

impl Generation {
    /// The generation of a sandbox, as its id shows it.
    pub(super) fn of(id: &str) -> Self {
        let rest = id.strip_prefix("sb-").unwrap_or(id);
        if rest.len() == 22 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            Self::Older
        } else {
            Self::Newer
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Older => "older (V1)",
            Self::Newer => "newer (V2)",
        })
    }
}

/// How a sandbox has ended, where it has.
pub(super) async fn wait(
    control: &Control,
    id: &str,
    generation: Generation,
    token: Option<&Secret>,
) -> Result<Option<GenericResult>, CallFailed> {
    let request = SandboxWaitRequest {
        sandbox_id: id.to_owned(),
        timeout: 0.0,
    };
    let answer = match generation {
        Generation::Newer => {
            control
                .call_v2(
                    "SandboxWaitV2",
                    Policy::QUESTION,
                    request,
                    token,
                    |mut client, request| async move { client.sandbox_wait_v2(request).await },
                )
                .await?
        }
        Generation::Older => {
            control
                .call(
                    "SandboxWait",
                    Policy::QUESTION,
                    request,
                    |mut client, request| async move { client.sandbox_wait(request).await },
                )
                .await?
        }
    };
    Ok(answer.result)
}

/// Ends a sandbox. One that has ended is no error.
pub(super) async fn terminate(
    control: &Control,
    id: &str,
    generation: Generation,
    token: Option<&Secret>,
) -> Result<(), CallFailed> {
    let request = SandboxTerminateRequest {
        sandbox_id: id.to_owned(),
    };
    let answer = match generation {
        Generation::Newer => {
            control
                .call_v2(
                    "SandboxTerminateV2",
                    TERMINATE,
                    request,
                    token,
                    |mut client, request| async move { client.sandbox_terminate_v2(request).await },
                )
                .await
        }
        Generation::Older => {
            control
                .call(
                    "SandboxTerminate",
                    TERMINATE,
                    request,
                    |mut client, request| async move { client.sandbox_terminate(request).await },
                )
                .await
        }
    };
    match answer {
        Err(failed) if failed.code != Code::NotFound => Err(failed),
        _ => Ok(()),
    }
}

/// The task that a sandbox runs as, or how it has ended.
pub(super) async fn ask_task_id(
    control: &Control,
    id: &str,
    generation: Generation,
    token: Option<&Secret>,
) -> Result<(Option<String>, Option<GenericResult>), CallFailed> {
    let request = SandboxGetTaskIdRequest {
        sandbox_id: id.to_owned(),
        timeout: None,
    };
    let answer = match generation {
        Generation::Newer => {
            control
                .call_v2(
                    "SandboxGetTaskIdV2",
                    Policy::CONTROL,
                    request,
                    token,
                    |mut client, request| async move { client.sandbox_get_task_id_v2(request).await },
                )
                .await?
        }
        Generation::Older => {
            control
                .call(
                    "SandboxGetTaskId",
                    Policy::CONTROL,
                    request,
                    |mut client, request| async move { client.sandbox_get_task_id(request).await },
                )
                .await?
        }
    };
    Ok((answer.task_id.filter(|task| !task.is_empty()), answer.task_result))
}

/// The task that a sandbox runs as, once it does.
pub(super) async fn task_id(
    control: &Control,
    id: &str,
    generation: Generation,
    token: Option<&Secret>,
) -> Result<String, CallFailed> {
    let began = Instant::now();
    loop {
        match ask_task_id(control, id, generation, token).await? {
            (Some(task), _) => return Ok(task),
            (None, _) if began.elapsed() > TASK_LIMIT => {
                let late = tonic::Status::deadline_exceeded("its sandbox has no place to run yet");
                return Err(CallFailed::of(&late));
            }
            (None, _) => tokio::time::sleep(ASK_AGAIN).await,
        }
    }
}

/// Time in which a sandbox that exists says what it runs as.
const TASK_LIMIT: Duration = Duration::from_secs(60);

/// Asks for access to the worker of a sandbox.
pub(super) struct AccessOf {
    pub(super) control: Arc<Control>,
    pub(super) id: String,
    pub(super) task: String,
    pub(super) generation: Generation,
    pub(super) token: Option<Secret>,
}

#[async_trait]
impl Lookup for AccessOf {
    async fn access(&self) -> Result<Access, CallFailed> {
        let (url, jwt) = match self.generation {
            Generation::Newer => {
                let request = SandboxGetCommandRouterAccessRequest {
                    target: Some(AccessTarget::SandboxId(self.id.clone())),
                };
                let token = self.token.as_ref();
                let asked = self.control.call_v2(
                    "SandboxGetCommandRouterAccess",
                    Policy::CONTROL,
                    request,
                    token,
                    |mut client, request| async move { client.sandbox_get_command_router_access(request).await },
                );
                let access = asked.await?;
                (access.url, access.jwt)
            }
            Generation::Older => {
                let request = TaskGetCommandRouterAccessRequest {
                    task_id: self.task.clone(),
                };
                let asked = self.control.call(
                    "TaskGetCommandRouterAccess",
                    Policy::CONTROL,
                    request,
                    |mut client, request| async move { client.task_get_command_router_access(request).await },
                );
                let access = asked.await?;
                (access.url, access.jwt)
            }
        };
        Ok(Access {
            url,
            token: Secret::new(jwt),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_shows_its_generation() {
        for (id, generation) in [
            ("sb-abcdefghijABCDEFGHIJ12", Generation::Older),
            ("sb-abcdefghijABCDEFGHIJ1", Generation::Newer),
            ("sb-abcdefghijABCDEFGHIJ123", Generation::Newer),
            ("sb-abcdefghij-BCDEFGHIJ12", Generation::Newer),
            ("sb-", Generation::Newer),
        ] {
            assert_eq!(Generation::of(id), generation, "{id}");
        }
    }
}
