//! The protocol over the process's own standard streams. Nothing else is ever written there: the streams are taken away
//! from the process first, so that neither it nor any child finds them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;

use rmcp::RoleServer;
use rmcp::service::{RxJsonRpcMessage, ServiceExt, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use super::server::Server;

/// Bytes of a message. One that is longer cannot be answered, as nobody knows which it was; so there is room for those that
/// are refused because a file is too large.
const MAX_MESSAGE: usize = 64 << 20;

/// The standard streams, as they were when the process started.
pub struct Streams {
    input: OwnedFd,
    output: OwnedFd,
}

impl Streams {
    /// Takes the streams away: from now on the process's standard input is empty, and what is written to its standard
    /// output goes to standard error. To be called before anything else that could read or write.
    ///
    /// # Errors
    /// The process has no such streams.
    pub fn take() -> io::Result<Self> {
        let streams = Self {
            input: rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?,
            output: rustix::io::fcntl_dupfd_cloexec(io::stdout().as_fd(), 3)?,
        };
        let nothing = File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        // Standard error may be closed.
        if rustix::stdio::dup2_stdout(io::stderr().as_fd()).is_err() {
            rustix::stdio::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
        }
        Ok(streams)
    }
}

type Input = Box<dyn AsyncRead + Send + Unpin>;
type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Serves one client until it closes our input or `stop` is cancelled. What it has started is interrupted then, but for
/// what is detached; [`Server::close`] is the caller's.
///
/// # Errors
/// The streams cannot be used, or the client does not speak the protocol.
pub async fn serve(server: &Server, streams: Streams, stop: &CancellationToken) -> io::Result<()> {
    let transport = Watched {
        inner: AsyncRwTransport::new(reader(streams.input)?, writer(streams.output)?).with_max_line_length(MAX_MESSAGE),
        server: server.clone(),
    };
    let running = match server.clone().serve_with_ct(transport, stop.clone()).await {
        Ok(running) => running,
        // A client that says nothing has nothing to be told.
        Err(
            rmcp::service::ServerInitializeError::ConnectionClosed(_) | rmcp::service::ServerInitializeError::Cancelled,
        ) => {
            return Ok(());
        }
        Err(error) => return Err(io::Error::other(error)),
    };
    running.waiting().await.map(|_| ()).map_err(io::Error::other)
}

/// Opened anew, a pipe can be read without a thread, and without a change of the description that others may share.
fn pipe_again(descriptor: &OwnedFd, is_input: bool) -> Option<File> {
    let kind = File::from(descriptor.try_clone().ok()?).metadata().ok()?.file_type();
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let mut options = File::options();
    options.read(is_input).write(!is_input).custom_flags(libc::O_NONBLOCK);
    kind.is_fifo().then(|| options.open(path).ok())?
}

/// As some runtimes of JavaScript start servers, their streams are sockets.
fn socket(descriptor: &OwnedFd) -> Option<tokio::net::UnixStream> {
    let descriptor = descriptor.try_clone().ok()?;
    let is_socket = File::from(descriptor.try_clone().ok()?)
        .metadata()
        .ok()?
        .file_type()
        .is_socket();
    let stream = is_socket.then(|| UnixStream::from(descriptor))?;
    stream.set_nonblocking(true).ok()?;
    tokio::net::UnixStream::from_std(stream).ok()
}

fn reader(descriptor: OwnedFd) -> io::Result<Input> {
    if let Some(pipe) = pipe_again(&descriptor, true) {
        return Ok(Box::new(pipe::Receiver::from_file(pipe)?));
    }
    Ok(match socket(&descriptor) {
        Some(socket) => Box::new(socket),
        None => Box::new(tokio::fs::File::from_std(File::from(descriptor))),
    })
}

fn writer(descriptor: OwnedFd) -> io::Result<Output> {
    if let Some(pipe) = pipe_again(&descriptor, false) {
        return Ok(Box::new(pipe::Sender::from_file(pipe)?));
    }
    Ok(match socket(&descriptor) {
        Some(socket) => Box::new(socket),
        None => Box::new(tokio::fs::File::from_std(File::from(descriptor))),
    })
}

/// Sees the client go, at once: what it has started is not wanted any more.
struct Watched {
    inner: AsyncRwTransport<RoleServer, Input, Output>,
    server: Server,
}

impl Transport<RoleServer> for Watched {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let message = self.inner.receive().await;
        if message.is_none() {
            self.server.clients_gone();
        }
        message
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
