//! The driver for targets on which a process may live long: one relay carries the directory for as long as it
//! can, and when it is gone another one takes its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use tracing::info;

use super::attempts::{Attempts, Lost, TICK};
use super::host::Signal;
use super::ready::Ready;
use super::shared::Shared;
use super::site::{Connection, Site};
use crate::link::LinkError;
use crate::link::introduction::introduce;

/// The longest time between two signs of life.
const BEAT: Duration = Duration::from_secs(5);
/// Time without a byte after which a link counts as lost.
const SILENCE: Duration = Duration::from_secs(15);

/// How life is shown and looked for.
#[derive(Clone, Copy)]
struct Pace {
    /// Time between two signs of life, and two looks whether there were any.
    beat: Duration,
    /// Time without a byte after which a link counts as lost.
    silence: Duration,
}

impl Pace {
    /// As a session's lease needs it.
    fn of(site: &Site) -> Self {
        Self {
            beat: BEAT.min(site.lease / 4),
            silence: SILENCE,
        }
    }
}

/// Time in which a new link must stand once the target was reached.
const ATTEMPT: Duration = Duration::from_secs(20);
/// Time after which what was taken of the log is acknowledged, should nothing else be said before.
const ACKNOWLEDGE: Duration = Duration::from_millis(20);

/// Carries the session over one stream after the other until it ends.
pub(super) async fn run(shared: Arc<Shared>, mut site: Site, mut connection: Connection) {
    let mut attempts = Attempts::new(site.reconnect_timeout);
    loop {
        let reason = match carry(&shared, &site, &mut connection).await.reason() {
            Ok(reason) => reason,
            Err(error) => {
                shared.close();
                connection.see_off().await;
                return shared.end(error);
            }
        };
        attempts.lost(shared.close());
        drop(connection);
        info!(target = %site.name, %reason, "the link is lost and made again");
        match reconnect(&shared, &mut site, &mut attempts, reason.clone()).await {
            Ok(new) => connection = new,
            Err(error) => return shared.end(error),
        }
        let mut state = shared.lock();
        state.relinks.count += 1;
        state.relinks.reason = reason;
    }
}

async fn reconnect(
    shared: &Arc<Shared>,
    site: &mut Site,
    attempts: &mut Attempts,
    mut reason: String,
) -> Result<Connection, LinkError> {
    loop {
        attempts.next(&site.name, &reason).await?;
        let limit = ATTEMPT + site.target.capabilities().reaching;
        let made = attempts.attempt(limit, &mut reason, attempt(shared, site)).await?;
        if let Some(connection) = made {
            return Ok(connection);
        }
    }
}

async fn attempt(shared: &Arc<Shared>, site: &mut Site) -> Result<Connection, Lost> {
    site.check().await?;
    let mut connection = site.spawn(Bytes::new()).await?;
    if introduce(&mut connection.stdout, &mut connection.buffer)
        .await
        .is_none()
    {
        return Err(Lost::Broken(connection.why("the relay did not begin").await));
    }
    shared.open(connection.stdin.take(), false);
    match ready(shared, site, &mut connection).await {
        Ok(_) => Ok(connection),
        Err(Lost::Ended(error)) => {
            connection.see_off().await;
            Err(Lost::Ended(site.explain(error).await))
        }
        Err(lost) => Err(lost),
    }
}

/// Waits until a relay has said what it found.
pub(super) async fn ready(shared: &Arc<Shared>, site: &Site, connection: &mut Connection) -> Result<Box<Ready>, Lost> {
    loop {
        let mut found = None;
        for signal in receive(shared, connection)? {
            match signal {
                Signal::Ready(ready) => found = Some(ready),
                other => end(site, other)?,
            }
        }
        if let Some(ready) = found {
            return Ok(ready);
        }
        if !matches!(connection.stdout.read_buf(&mut connection.buffer).await, Ok(1..)) {
            return Err(Lost::Broken(connection.why("the relay ended before it began").await));
        }
    }
}

/// Takes what has come.
pub(super) fn receive(shared: &Arc<Shared>, connection: &mut Connection) -> Result<Vec<Signal>, Lost> {
    use super::host::HostError;
    shared.receive(&mut connection.buffer).map_err(|error| match error {
        HostError::Session(error) => Lost::Ended(error),
        HostError::Frame(_) | HostError::Link(_) => Lost::Broken(error.to_string()),
    })
}

/// What the relay says at the end of a link.
pub(super) fn end(site: &Site, signal: Signal) -> Result<(), Lost> {
    match signal {
        Signal::Gone(why) => Err(site.ended(why)),
        Signal::Refused(why) => Err(Lost::Broken(why)),
        Signal::NoProcess(why) => Err(Lost::NoProcess(why)),
        Signal::NoZlib => Err(Lost::NoZlib),
        Signal::Ready(_) | Signal::LookEnd | Signal::Dispatch(..) | Signal::Cancel(_) => Ok(()),
    }
}

/// Carries frames until the link ends.
async fn carry(shared: &Arc<Shared>, site: &Site, connection: &mut Connection) -> Lost {
    let heard = AtomicBool::new(true);
    tokio::select! {
        lost = read(shared, site, connection, &heard) => lost,
        never = shared.write() => match never {},
        never = shared.retry_refused() => match never {},
        () = watch(shared, &heard, Pace::of(site)) => Lost::Broken(format!("nothing was heard for {} s", SILENCE.as_secs())),
    }
}

async fn read(shared: &Arc<Shared>, site: &Site, connection: &mut Connection, heard: &AtomicBool) -> Lost {
    let mut acknowledge: Option<Instant> = Some(Instant::now() + ACKNOWLEDGE);
    loop {
        let due = acknowledge.unwrap_or_else(Instant::now);
        connection.buffer.reserve(1 << 16);
        let read = tokio::select! {
            read = connection.stdout.read_buf(&mut connection.buffer) => read,
            () = tokio::time::sleep_until(due), if acknowledge.is_some() => {
                acknowledge = shared.acknowledge().then(|| Instant::now() + 5 * ACKNOWLEDGE);
                continue;
            }
        };
        if !matches!(read, Ok(1..)) {
            return Lost::Broken(connection.why("the relay ended").await);
        }
        heard.store(true, Ordering::Relaxed);
        let signals = match receive(shared, connection) {
            Ok(signals) => signals,
            Err(lost) => return lost,
        };
        for signal in signals {
            if let Err(lost) = end(site, signal) {
                return lost;
            }
        }
        acknowledge.get_or_insert_with(|| Instant::now() + ACKNOWLEDGE);
    }
}

/// Gives signs of life; returns when none came for too long. Time in which this process did not run does not count.
async fn watch(shared: &Shared, heard: &AtomicBool, pace: Pace) {
    let mut silence = Duration::ZERO;
    while silence < pace.silence {
        let began = Instant::now();
        tokio::time::sleep(pace.beat).await;
        if heard.swap(false, Ordering::Relaxed) {
            silence = Duration::ZERO;
        } else {
            silence += began.elapsed().min(pace.beat + TICK);
        }
        shared.beat();
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::Value;

    use super::*;
    use crate::link::{CallHandler, IncomingCall};

    struct Nobody;

    #[async_trait]
    impl CallHandler for Nobody {
        async fn handle(&self, _: IncomingCall) -> Value {
            Value::Null
        }
    }

    #[tokio::test]
    async fn a_link_is_lost_after_silence_and_not_before() {
        let shared = Shared::new(1 << 20, "token".into(), Arc::new(Nobody));
        let pace = Pace {
            beat: Duration::from_millis(20),
            silence: Duration::from_millis(200),
        };
        let heard = AtomicBool::new(true);
        let speaks = async {
            for _ in 0..100 {
                heard.store(true, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = watch(&shared, &heard, pace) => panic!("something was heard"),
            () = speaks => {}
        }
        let began = Instant::now();
        watch(&shared, &heard, pace).await;
        assert!(began.elapsed() >= pace.silence / 2);
    }
}
