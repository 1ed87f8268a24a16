//! The server: what a client is told, and who answers which request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorCode, Implementation, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio_util::sync::CancellationToken;

use super::approval::Desk;
use super::calls::Brought;
use super::targets::Targets;
use super::tools::{Offered, offered};
use super::{arguments, spill};
use crate::broker::{Broker, Executions, InUse, OwnedSessions, StartError};

/// Idle time of a session after which it is ended, as a multiple of that after which its kernel is.
const IDLE_FACTOR: u32 = 2;

/// How often is looked for sessions that are idle for too long.
const SWEEP: Duration = Duration::from_secs(60);

/// How a server behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Calls of a principal that name no session share one, unless it is busy. Only where a principal is one client: a
    /// client must not find another's variables.
    pub keeps_default_session: bool,
}

/// Answers what clients ask. Cloning it copies a handle.
#[derive(Clone)]
pub struct Server {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    broker: Arc<Broker>,
    pub(super) sessions: OwnedSessions,
    pub(super) executions: Executions,
    targets: Targets,
    tools: Vec<Offered>,
    settings: Settings,
    /// Who is asked about the calls of scripts that run, by execution.
    pub(super) desks: Mutex<HashMap<String, Weak<Desk>>>,
    /// Default sessions: the handle, by principal and target.
    defaults: Mutex<HashMap<(String, String), String>>,
}

/// Whose request it is.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) principal: Arc<str>,
    /// Cancelled when the one who asked has gone.
    pub(super) gone: CancellationToken,
}

/// The principal of requests that come over the standard streams.
const STDIO: &str = "stdio";

impl Caller {
    fn of(context: &RequestContext<RoleServer>) -> Self {
        let parts = context.extensions.get::<http::request::Parts>();
        parts
            .and_then(|parts| parts.extensions.get::<Self>())
            .cloned()
            .unwrap_or_else(|| Self {
                principal: STDIO.into(),
                gone: CancellationToken::new(),
            })
    }
}

/// A session for a call.
pub(super) struct Chosen {
    pub(super) session: InUse,
    /// It was opened for this call, whose answer is the first to name it.
    pub(super) is_new: bool,
}

impl Server {
    /// A server for these targets. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The default target cannot be used: a sentence that says why.
    pub fn new(targets: Targets, settings: Settings) -> Result<Self, String> {
        let options = targets.options(None)?;
        let broker = Arc::new(Broker::new(options.limits.max_session_kernels));
        let idle_limit = options.limits.kernel_idle_timeout * IDLE_FACTOR;
        let server = Self {
            shared: Arc::new(Shared {
                sessions: OwnedSessions::new(broker.clone(), idle_limit),
                broker,
                executions: Executions::default(),
                tools: offered(&options, &targets, settings.keeps_default_session),
                targets,
                settings,
                desks: Mutex::default(),
                defaults: Mutex::default(),
            }),
        };
        let shared = Arc::downgrade(&server.shared);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                match shared.upgrade() {
                    Some(shared) => shared.sessions.end_idle(None),
                    None => break,
                }
            }
        });
        Ok(server)
    }

    /// Interrupts what clients have started that are all gone now, but for what is detached.
    pub fn clients_gone(&self) {
        self.shared.executions.cancel_attached("the client has gone");
    }

    /// Interrupts everything.
    pub fn stop(&self, reason: &str) {
        self.shared.executions.cancel_all(reason);
    }

    /// Waits for what still runs, then ends all sessions. No request may come any more.
    pub async fn close(&self) {
        self.shared.executions.finish().await;
        self.shared.broker.close().await;
    }

    /// The session that a call names, the default one, or a new one. A script takes the default one only while no other
    /// runs there: the two may have nothing to do with each other.
    pub(super) fn choose(
        &self,
        principal: &str,
        session: Option<&str>,
        target: Option<&str>,
        is_script: bool,
    ) -> Result<Chosen, StartError> {
        let shared = &self.shared;
        if let Some(handle) = session {
            let shown: String = handle.chars().take(100).collect();
            let found = shared.sessions.take(principal, handle).ok_or_else(|| {
                StartError::Refused(format!(
                    "there is no session {shown:?}: it was closed, or was idle for too long; leave `session` out for another"
                ))
            })?;
            return match target {
                Some(target) if target != found.target => Err(StartError::Refused(format!(
                    "the session {shown} runs on {}; leave `target` out to use it, or `session` for a new one on {target}",
                    found.target
                ))),
                _ => Ok(Chosen {
                    session: found,
                    is_new: false,
                }),
            };
        }
        let open = || {
            let options = shared.targets.options(target).map_err(StartError::Refused)?;
            Ok::<_, StartError>(shared.sessions.open(principal, options)?)
        };
        if !shared.settings.keeps_default_session {
            let session = open()?;
            return Ok(Chosen { session, is_new: true });
        }
        let default = || shared.targets.names().first().cloned().unwrap_or_default();
        let place = (principal.to_owned(), target.map_or_else(default, str::to_owned));
        let mut defaults = shared.defaults.lock().unwrap_or_else(PoisonError::into_inner);
        let default = defaults.get(&place);
        match default.and_then(|handle| shared.sessions.take(principal, handle)) {
            Some(session) if is_script && session.is_busy() => {
                let session = open()?;
                return Ok(Chosen { session, is_new: true });
            }
            Some(session) => return Ok(Chosen { session, is_new: false }),
            None => {}
        }
        let session = open()?;
        defaults.insert(place, session.handle.clone());
        Ok(Chosen { session, is_new: false })
    }

    /// The target of a call that names it or not, as far as it is known.
    pub(super) fn target_named<'a>(&'a self, target: Option<&'a str>) -> &'a str {
        target.unwrap_or_else(|| self.shared.targets.names().first().map_or("", String::as_str))
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("talaria", env!("CARGO_PKG_VERSION")).with_title("Talaria"))
            .with_instructions(
                "Runs Python scripts that call tools, where you say, and gives back what they print. Start with \
                 execute_code; an answer with status `running` goes on with execution_status.",
            )
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.shared.tools.iter().map(|one| one.tool.clone()).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let found = self.shared.tools.iter().find(|one| one.spec.name == name);
        found.map(|one| one.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = Caller::of(&context);
        let Some(offered) = self.shared.tools.iter().find(|one| one.spec.name == request.name) else {
            let shown: String = request.name.chars().take(100).collect();
            let names: Vec<&str> = self.shared.tools.iter().map(|one| one.spec.name.as_str()).collect();
            return Err(ErrorData::new(
                ErrorCode::INVALID_PARAMS,
                format!("there is no tool {shown:?}; there are {}", names.join(", ")),
                None,
            ));
        };
        let (spec, given) = (&offered.spec, request.arguments);
        let brought = Brought {
            state: request.request_state,
            responses: request.input_responses,
        };
        let result = match spec.name.as_str() {
            "execute_code" => {
                return self
                    .execute_code(arguments::read(spec, given)?, brought, &caller, &context)
                    .await;
            }
            "execution_status" => {
                return self
                    .execution_status(arguments::read(spec, given)?, brought, &caller, &context)
                    .await;
            }
            "execution_cancel" => self.execution_cancel(arguments::read(spec, given)?, &caller).await,
            "session_list" => {
                arguments::read::<arguments::Nothing>(spec, given)?;
                Ok(self.session_list(&caller))
            }
            "session_close" => self.session_close(arguments::read(spec, given)?, &caller).await,
            "put_file" => self.put_file(arguments::read(spec, given)?, &caller, &context).await,
            _ => self.get_file(arguments::read(spec, given)?, &caller, &context).await,
        };
        result.map(CallToolResponse::from)
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let found = spill::list(&self.shared.executions, &Caller::of(&context).principal);
        Ok(ListResourcesResult::with_all_items(found))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![spill::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let principal = Caller::of(&context).principal;
        spill::read(&self.shared.executions, &principal, &request.uri).map(ReadResourceResponse::from)
    }
}
