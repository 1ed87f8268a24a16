//! The driver for targets on which no process may live long: one look after the other, each a process that takes
//! everything there and brings everything back. Where such a process has no streams, it is told all before it starts, and
//! what it brings comes when it has ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tracing::debug;

use super::attempts::{Attempts, Lost};
use super::frame::{Frame, kind};
use super::host::Signal;
use super::ready::Ready;
use super::shared::{Shared, Writer};
use super::site::{Connection, Site};
use super::stream::{end, receive};
use crate::link::LinkError;
use crate::link::introduction::introduce;

/// The longest that a look waits over there for something to say.
const WAIT: Duration = Duration::from_secs(1);
/// The same where it can be told nothing meanwhile and a call is being answered.
const SHORT_WAIT: Duration = Duration::from_millis(250);
/// Time in which such a call may be answered before a look begins.
const PAUSE: Duration = Duration::from_millis(30);
/// Time beyond that in which it must have come back.
const LIMIT: Duration = Duration::from_secs(20);
/// The same for one that carries bodies to the target.
const UPLOAD_LIMIT: Duration = Duration::from_secs(60);

/// Time between two looks at what was taken of what a look brings, for it to bring more.
const ROOM: Duration = Duration::from_millis(10);

/// Time in which a target says whether it runs.
const ASK: Duration = Duration::from_secs(2);

/// Looks until the session ends. The process which made the session may still be there for the first look.
pub(super) async fn run(shared: Arc<Shared>, mut site: Site, mut first: Option<Connection>) {
    let mut attempts = Attempts::new(site.reconnect_timeout);
    loop {
        let wait = match first {
            Some(_) => Duration::ZERO,
            None => next_look(&shared, &site).await,
        };
        let limit = if shared.lock().host.is_uploading() {
            UPLOAD_LIMIT
        } else {
            wait + LIMIT
        };
        let look = look(&shared, &mut site, first.take(), wait);
        let reason = match attempts.bounded(limit, look).await {
            Some(Ok(())) => {
                attempts = Attempts::new(site.reconnect_timeout);
                continue;
            }
            Some(Err(lost)) => match lost.reason() {
                Ok(reason) => reason,
                Err(error) => {
                    let is_asked_for = shared.lock().host.is_closing();
                    let error = if is_asked_for { error } else { site.explain(error).await };
                    return shared.end(error);
                }
            },
            // There may be no time left to ask in.
            None => match tokio::time::timeout(ASK, site.check()).await {
                Ok(Err(Lost::Ended(error))) => return shared.end(error),
                Ok(Err(Lost::Broken(reason))) => reason,
                _ => "it did not answer in time".to_owned(),
            },
        };
        debug!(target = %site.name, %reason, "a look was lost");
        shared.close();
        {
            let mut state = shared.lock();
            state.relinks.count += 1;
            state.relinks.reason.clone_from(&reason);
        }
        if let Err(error) = wait_for_target(&site, &mut attempts, reason).await {
            return shared.end(error);
        }
    }
}

/// Waits until it is time for a look. Returns how long that may wait over there.
async fn next_look(shared: &Shared, site: &Site) -> Duration {
    // Without streams nothing can be said to a look that waits, so that it had better not begin right before an answer.
    let mut may_pause = !site.target.capabilities().has_streams;
    let longest = |is_answering: bool| if is_answering { SHORT_WAIT } else { WAIT };
    loop {
        shared.retry();
        let is_pause = {
            let state = shared.lock();
            if state.host.is_uploading() {
                return Duration::ZERO;
            }
            let is_answering = !site.target.capabilities().has_streams && state.is_answering();
            let is_pause = may_pause && is_answering && !state.host.has_news();
            if state.host.is_busy() && !is_pause {
                return longest(is_answering);
            }
            is_pause
        };
        let limit = if is_pause { PAUSE } else { site.lease / 3 };
        let is_said = tokio::time::timeout(limit, shared.to_say.notified()).await.is_ok();
        if is_pause {
            may_pause = false;
        } else if !is_said {
            // Only to keep the lease.
            return Duration::ZERO;
        }
    }
}

/// Asks for the target until it can be looked at again.
async fn wait_for_target(site: &Site, attempts: &mut Attempts, mut reason: String) -> Result<(), LinkError> {
    loop {
        attempts.next(&site.name, &reason).await?;
        let limit = LIMIT + site.target.capabilities().reaching;
        if let Some(()) = attempts.attempt(limit, &mut reason, site.check()).await? {
            return Ok(());
        }
    }
}

/// The look that made the session, where it was told all at once: to its end.
pub(super) async fn first_look(
    shared: &Arc<Shared>,
    site: &Site,
    connection: &mut Connection,
) -> Result<Box<Ready>, Lost> {
    let mut found = None;
    loop {
        for signal in receive(shared, connection)? {
            match signal {
                Signal::Ready(ready) => found = Some(ready),
                Signal::LookEnd => {
                    shared.close();
                    return found.ok_or_else(|| Lost::Broken("the relay did not say what it found".to_owned()));
                }
                other => end(site, other)?,
            }
        }
        if !matches!(connection.stdout.read_buf(&mut connection.buffer).await, Ok(1..)) {
            return Err(Lost::Broken(connection.why("the relay ended before it began").await));
        }
    }
}

async fn look(shared: &Arc<Shared>, site: &mut Site, first: Option<Connection>, wait: Duration) -> Result<(), Lost> {
    let is_first = first.is_some();
    let has_streams = site.target.capabilities().has_streams;
    let mut connection = match first {
        Some(connection) => connection,
        None if has_streams => {
            let connection = site.spawn(Bytes::new()).await?;
            shared.open(None, true);
            connection
        }
        None => site.spawn(told_at_once(shared, wait)).await?,
    };
    let (mut stdin, frames) = match has_streams {
        true => (connection.stdin.take(), frames(shared, wait)),
        false => (None, BytesMut::new()),
    };
    let write = async {
        write(&mut stdin, &frames).await;
        loop {
            tokio::time::sleep(ROOM).await;
            let mut room = BytesMut::new();
            shared.lock().host.write_room(&mut room);
            if !room.is_empty() {
                write(&mut stdin, &room).await;
            }
        }
    };
    let read = async {
        if !is_first
            && introduce(&mut connection.stdout, &mut connection.buffer)
                .await
                .is_none()
        {
            return Err(Lost::Broken(connection.why("the relay did not begin").await));
        }
        loop {
            for signal in receive(shared, &mut connection)? {
                match signal {
                    Signal::LookEnd => {
                        shared.close();
                        return Ok(());
                    }
                    other => {
                        if let Err(lost) = end(site, other) {
                            connection.see_off().await;
                            return Err(lost);
                        }
                    }
                }
            }
            // A look that only waits is given up as soon as there is more to say.
            let only_waits = !wait.is_zero() && shared.lock().host.is_quiet();
            let read = tokio::select! {
                read = connection.stdout.read_buf(&mut connection.buffer) => read,
                () = news(shared), if only_waits => return Ok(()),
            };
            if !matches!(read, Ok(1..)) {
                return Err(Lost::Broken(
                    connection.why("the relay ended before it was asked to").await,
                ));
            }
        }
    };
    // Both at once: a relay that has much to say must not wait for us, nor we for it.
    tokio::select! {
        look = read => look,
        () = write => Ok(()),
    }
}

/// Waits until there is something to say that a look, told before, was not told.
async fn news(shared: &Shared) {
    while !shared.lock().host.has_news() {
        shared.to_say.notified().await;
    }
}

/// A look begins that is told all there is to say before its process is there.
pub(super) fn told_at_once(shared: &Shared, wait: Duration) -> Bytes {
    shared.open(None, true);
    frames(shared, wait).freeze()
}

/// All that there is to say.
fn frames(shared: &Shared, wait: Duration) -> BytesMut {
    let mut state = shared.lock();
    let mut frames = BytesMut::new();
    state.host.acknowledge_all();
    loop {
        let before = frames.len();
        state.host.write(&mut frames);
        if frames.len() == before {
            break;
        }
    }
    Frame::number(kind::LOOK, u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)).encode(&mut frames);
    frames
}

async fn write(stdin: &mut Option<Writer>, frames: &[u8]) {
    if let Some(stdin) = stdin {
        // A relay that has ended shows on what comes from there.
        let _ = stdin.write_all(frames).await;
        let _ = stdin.flush().await;
    }
}
