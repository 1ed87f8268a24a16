//! The socket that scripts connect to: a Unix socket, or loopback TCP. The one place that differs
//! between operating systems.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::link::LinkError;

/// Which kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A Unix socket, 0600 in the session's folder.
    Unix,
    /// A port on 127.0.0.1; the token is what protects it.
    Tcp,
}

impl Transport {
    /// As outcomes name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix-socket",
            Self::Tcp => "loopback-tcp",
        }
    }
}

/// One connection of a script.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A bound socket.
pub(super) enum Endpoint {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener, u16),
}

impl Endpoint {
    /// Binds a socket; a Unix socket lies in `folder`, which must be private.
    pub(super) async fn bind(transport: Transport, folder: &Path) -> Result<Self, LinkError> {
        match transport {
            Transport::Unix => {
                let path = folder.join("rpc.sock");
                let failed = |source: std::io::Error| LinkError::Bind {
                    place: path.display().to_string(),
                    source: source.into(),
                };
                if let Err(error) = std::fs::remove_file(&path)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    return Err(failed(error));
                }
                let listener = UnixListener::bind(&path).map_err(failed)?;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
                Ok(Self::Unix(listener, path))
            }
            Transport::Tcp => {
                let failed = |source: std::io::Error| LinkError::Bind {
                    place: "127.0.0.1".to_owned(),
                    source: source.into(),
                };
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed)?;
                let port = listener.local_addr().map_err(failed)?.port();
                Ok(Self::Tcp(listener, port))
            }
        }
    }

    /// Whether scripts can still find it.
    pub(super) fn is_reachable(&self) -> bool {
        match self {
            Self::Unix(_, path) => path.exists(),
            Self::Tcp(..) => true,
        }
    }

    /// The value of `HERMES_RPC_SOCKET`.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Unix(_, path) => path.display().to_string(),
            Self::Tcp(_, port) => format!("tcp:127.0.0.1:{port}"),
        }
    }

    pub(super) async fn accept(&self) -> std::io::Result<Box<dyn Stream>> {
        match self {
            Self::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
            Self::Tcp(listener, _) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
        }
    }
}
