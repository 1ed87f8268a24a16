//! What stands between `ssh` and `sshd`, and can harm the connections that go through it.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt;

/// Passes bytes on.
const OPEN: u8 = 0;
/// Passes nothing on, and says nothing of it.
const SILENT: u8 = 1;
/// Answers with a reset from now on.
const RESET: u8 = 2;

/// A way to a port of this machine. It ends when this is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    ways: Arc<Mutex<Vec<Arc<AtomicU8>>>>,
    /// What becomes of new connections, and where they lead.
    next: Arc<AtomicU8>,
    target: Arc<AtomicU16>,
}

impl Proxy {
    pub(crate) fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ways: Arc<Mutex<Vec<Arc<AtomicU8>>>> = Arc::default();
        let next = Arc::new(AtomicU8::new(OPEN));
        let target = Arc::new(AtomicU16::new(target));
        let (known, first, to) = (ways.clone(), next.clone(), target.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Nobody holds it any more.
                if Arc::strong_count(&first) == 1 {
                    return;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", to.load(Ordering::SeqCst))) else {
                    continue;
                };
                let way = Arc::new(AtomicU8::new(first.load(Ordering::SeqCst)));
                known.lock().unwrap().push(way.clone());
                let (client, server) = (Arc::new(client), Arc::new(server));
                for (from, to) in [(client.clone(), server.clone()), (server, client)] {
                    let way = way.clone();
                    std::thread::spawn(move || carry(&from, &to, &way));
                }
            }
        });
        Self {
            port,
            ways,
            next,
            target,
        }
    }

    fn all(&self, mode: u8) -> bool {
        let ways = self.ways.lock().unwrap();
        let alive = ways.iter().filter(|way| Arc::strong_count(way) > 1);
        alive.map(|way| way.store(mode, Ordering::SeqCst)).count() > 0
    }

    /// New connections lead to this port.
    pub(crate) fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }

    /// Resets what goes through; whether anything does.
    pub(crate) fn reset(&self) -> bool {
        self.all(RESET)
    }

    /// Nothing more of the connections that are there arrives; new ones work.
    pub(crate) fn forget(&self) {
        self.all(SILENT);
    }

    /// Nothing arrives, also of new connections, until [`Proxy::go_on`].
    pub(crate) fn fall_silent(&self) {
        self.next.store(SILENT, Ordering::SeqCst);
        self.all(SILENT);
    }

    /// All that was held back arrives.
    pub(crate) fn go_on(&self) {
        self.next.store(OPEN, Ordering::SeqCst);
        self.all(OPEN);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.reset();
        self.next.store(RESET, Ordering::SeqCst);
        self.next = Arc::default();
        // Wakes the thread that listens.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn carry(mut from: &TcpStream, mut to: &TcpStream, way: &AtomicU8) {
    from.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match way.load(Ordering::SeqCst) {
            SILENT => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            RESET => {
                for one in [from, to] {
                    let _ = sockopt::set_socket_linger(one, Some(Duration::ZERO));
                }
                return;
            }
            _ => {}
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                if to.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}
