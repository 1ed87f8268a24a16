//! `talaria mcp`

use std::io::IsTerminal;

use anyhow::{Context, anyhow};
use talaria_broker::config::Flags;
use talaria_broker::environment::Environment;
use talaria_broker::mcp::http::{self, Access, PATH, TOKEN_VARIABLE};
use talaria_broker::mcp::stdio::{self, Streams};
use talaria_broker::mcp::{Server, Settings, Targets};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::args::{Global, Mcp};
use super::{UsageError, say};

pub(super) fn run(verb: &Mcp, global: &Global, environment: &Environment) -> anyhow::Result<u8> {
    if verb.http.is_none() && std::io::stdin().is_terminal() {
        say(
            "notice: this speaks the Model Context Protocol on standard input and output, and is started by an agent or editor; see docs/mcp.md",
        );
    }
    // Before anything else could be written: nothing but the protocol is ever written to standard output.
    let streams = match verb.http {
        None => Some(Streams::take().context("the standard streams cannot be used")?),
        Some(_) => None,
    };
    let flags = Flags {
        target: verb.on.clone(),
        ..Flags::default()
    };
    let config = super::load(global, environment, flags)?;
    let targets = Targets::new(config, environment.clone(), verb.any_target);
    let settings = Settings {
        keeps_default_session: verb.http.is_none(),
    };
    let access = access(verb, environment)?;
    super::block_on(async {
        let server = Server::new(targets, settings).map_err(UsageError)?;
        let stop = CancellationToken::new();
        let signals = watch_signals(server.clone(), stop.clone())?;
        let served = match (streams, &verb.http) {
            (Some(streams), _) => stdio::serve(&server, streams, &stop).await,
            (None, address) => listen(&server, address.as_deref().unwrap_or_default(), access, &stop).await?,
        };
        server.clients_gone();
        server.close().await;
        signals.abort();
        served.map_err(|error| anyhow!("clients cannot be served: {error}"))?;
        Ok(0)
    })
}

async fn listen(
    server: &Server,
    address: &str,
    access: Access,
    stop: &CancellationToken,
) -> anyhow::Result<std::io::Result<()>> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        UsageError(format!(
            "the flag --http: {address} cannot be listened on ({error}); write ADDRESS:PORT, for instance 127.0.0.1:8765"
        ))
    })?;
    let address = listener.local_addr()?;
    access.check(address).map_err(|error| UsageError(error.to_string()))?;
    say(&format!("listening on http://{address}{PATH}"));
    if access.is_open() {
        say(&format!(
            "notice: no token is set, so whoever can connect on this machine runs scripts as you; {TOKEN_VARIABLE} sets one"
        ));
    }
    Ok(http::serve(server, listener, access, stop).await)
}

/// Who may ask over HTTP. Tokens come from where other users of this machine do not see them.
fn access(verb: &Mcp, environment: &Environment) -> anyhow::Result<Access> {
    let mut access = Access::default();
    access.hosts.clone_from(&verb.allow_host);
    access.origins.clone_from(&verb.allow_origin);
    if let Some(file) = &verb.token_file {
        let shown = file.display().to_string();
        let text = std::fs::read_to_string(file)
            .map_err(|error| UsageError(format!("the token file {shown} cannot be read: {error}")))?;
        access = access
            .with_tokens(&text, &shown)
            .map_err(|error| UsageError(error.to_string()))?;
    } else if let Some(token) = environment.filled(TOKEN_VARIABLE).filter(|_| verb.http.is_some()) {
        let token = token.to_string_lossy();
        access = access
            .with_token(&token, TOKEN_VARIABLE)
            .map_err(|error| UsageError(error.to_string()))?;
    }
    Ok(access)
}

/// A signal that ends programs ends what runs, at once.
fn watch_signals(server: Server, stop: CancellationToken) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
                _ = hang_up.recv() => "SIGHUP",
            };
            server.stop(name);
            stop.cancel();
        }
    }))
}
