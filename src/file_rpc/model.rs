//! The host against a model of the target: supervisor, relays, callers and the directory between them, as
//! `docs/protocol.md` describes them. Every step is chosen by the test: links are cut and delayed, relays killed
//! between any two of their actions. However it goes, it must come to what an undisturbed run comes to.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::calls::{CallId, LOST};
use super::frame::{Frame, MAX_PAYLOAD, kind};
use super::host::{Host, Signal};
use crate::link::{LinkCommand, LinkEvent, RunJob};

const WINDOW: u32 = 4 * 65_536;
/// Pieces of the log in one frame: small, so that events are cut.
const LOG_PIECE: usize = 40;

/// The directory: what outlives every relay.
#[derive(Default)]
struct Directory {
    commands: BTreeMap<u64, Vec<u8>>,
    taken: u64,
    blobs: BTreeMap<String, Vec<u8>>,
    complete: BTreeSet<String>,
    log: Vec<u8>,
    acked: u64,
    requests: BTreeMap<String, Vec<u8>>,
    answers: BTreeMap<String, Vec<u8>>,
}

/// What a relay still has to do, in this order; it may die before any of it.
enum Action {
    Say(Frame),
    StoreAnswer(String, Vec<u8>),
    StoreAnswerBlob(String, String),
    RemoveRequest(String),
}

#[derive(Default)]
struct Relay {
    inbox: VecDeque<Frame>,
    actions: VecDeque<Action>,
    outbox: VecDeque<Frame>,
    resumed: bool,
    log_sent: u64,
    calls_sent: BTreeSet<String>,
    said: u64,
    consumed: u64,
}

/// A script's thread: one call after the other.
struct Caller {
    name: u64,
    sequence: u64,
    calls: u64,
    waiting: bool,
    answers: Vec<Vec<u8>>,
}

struct World {
    host: Host,
    directory: Directory,
    /// The relay of the current link, and those that the broker has given up but that go on.
    relay: Option<Relay>,
    former: Vec<Relay>,
    /// Frames on their way to us.
    to_host: VecDeque<Frame>,
    callers: Vec<Caller>,
    running: VecDeque<(CallId, Bytes)>,
    now: Duration,
    /// Every request that there ever was.
    requests: BTreeMap<String, Vec<u8>>,
    /// A script removed the directory.
    was_wiped: bool,
    // What is compared.
    acted: Vec<Vec<u8>>,
    events: Vec<String>,
    dispatched: Vec<String>,
    answer_size: usize,
}

fn event(kind: u8, fields: &[&[u8]]) -> Vec<u8> {
    let mut body = vec![kind];
    for field in fields {
        body.put_u32(field.len() as u32);
        body.put_slice(field);
    }
    let mut message = (body.len() as u32).to_be_bytes().to_vec();
    message.extend(body);
    message
}

fn request_of(id: &str, size: usize) -> Vec<u8> {
    let mut body = format!("request {id} ").into_bytes();
    body.resize(body.len() + size, b'x');
    body
}

fn answer_of(request: &[u8], size: usize) -> Vec<u8> {
    let head: Vec<u8> = request.iter().copied().take(40).collect();
    let mut body = [b"answer to ".to_vec(), head].concat();
    body.resize(body.len() + size, b'y');
    body
}

fn job(number: u64, size: usize) -> LinkCommand {
    LinkCommand::RunJob(RunJob {
        job: number,
        timeout: 1.0,
        output_cap: 1,
        folder: Vec::new(),
        argv: Vec::new(),
        environment: Vec::new(),
        script_path: Vec::new(),
        script: vec![b's'; size],
        state_path: Vec::new(),
    })
}

/// A cell's clock is to stand still, or to go on: nothing is told of it, and the last one counts.
fn hold(number: u64) -> LinkCommand {
    LinkCommand::HoldCell {
        cell: 1,
        at_most: Duration::from_secs(number),
    }
}

fn is_hold(message: &[u8]) -> bool {
    message[4] == b'P'
}

impl World {
    fn new(callers: u64, calls: u64, answer_size: usize) -> Self {
        Self {
            host: Host::new(WINDOW),
            directory: Directory::default(),
            relay: None,
            former: Vec::new(),
            to_host: VecDeque::new(),
            callers: (0..callers)
                .map(|name| Caller {
                    name: name + 1,
                    sequence: 0,
                    calls,
                    waiting: false,
                    answers: Vec::new(),
                })
                .collect(),
            running: VecDeque::new(),
            now: Duration::ZERO,
            requests: BTreeMap::new(),
            was_wiped: false,
            acted: Vec::new(),
            events: Vec::new(),
            dispatched: Vec::new(),
            answer_size,
        }
    }

    // The broker's side.

    /// A link is made: the fence kills all former relays.
    fn link(&mut self, is_look: bool) {
        self.cut();
        self.former.clear();
        let mut relay = Relay {
            consumed: u64::from(u32::MAX),
            ..Relay::default()
        };
        if is_look {
            self.host.open_look();
        } else {
            self.host.open_link();
            relay.consumed = 0;
        }
        let directory = &self.directory;
        let ready = serde_json::json!({
            "session": "s", "folder": "/D", "taken": directory.taken,
            "stored": directory.commands.keys().collect::<Vec<_>>(),
            "blobs": directory.blobs.iter().map(|(id, bytes)| (id.clone(), bytes.len())).collect::<BTreeMap<_, _>>(),
            "complete": directory.complete,
        });
        relay.say(Frame::whole(kind::READY, Bytes::new(), ready.to_string()));
        self.relay = Some(relay);
    }

    /// The broker gives a link up. Its relay may go on until the next one comes.
    fn cut(&mut self) {
        self.host.close_link();
        self.to_host.clear();
        self.former.extend(self.relay.take());
    }

    /// The relay dies.
    fn kill(&mut self) {
        self.relay = None;
        self.former.clear();
    }

    fn say(&mut self) {
        self.now += Duration::from_millis(50);
        self.host.retry(self.now);
        let mut out = BytesMut::new();
        self.host.write(&mut out);
        if let Some(relay) = &mut self.relay {
            while let Some(frame) = Frame::decode(&mut out).unwrap() {
                relay.inbox.push_back(frame);
            }
        }
    }

    fn hear(&mut self) {
        let Some(frame) = self.to_host.pop_front() else { return };
        let mut signal = self.host.receive(frame, self.now).unwrap();
        while let Some(one) = signal {
            match one {
                Signal::Dispatch(id, body) => {
                    self.dispatched.push(id.to_string());
                    self.running.push_back((id, body));
                }
                Signal::Cancel(id) => panic!("{id} was cancelled though its caller waits"),
                Signal::Ready(_) => {}
                other => panic!("{other:?}"),
            }
            signal = self.host.signal();
        }
    }

    fn answer(&mut self, which: usize) {
        if self.running.is_empty() {
            return;
        }
        let which = which % self.running.len();
        let (id, body) = self.running.remove(which).unwrap();
        self.host.answer(id, answer_of(&body, self.answer_size).into());
    }

    fn take_event(&mut self) {
        if let Some(event) = self.host.event() {
            self.events.push(match event {
                LinkEvent::JobOutput { job, data } => format!("output {job} {}", data.len()),
                LinkEvent::JobDone(done) => format!("done {}", done.job),
                other => format!("{other:?}"),
            });
        }
    }

    // The target's side.

    /// The supervisor takes a command, acts on it and tells.
    fn supervise(&mut self) {
        let next = self.directory.taken + 1;
        if let Some(message) = self.directory.commands.get(&next) {
            self.directory.taken = next;
            self.acted.push(message.clone());
            if is_hold(message) {
                self.directory.commands.remove(&next);
                return;
            }
            let number = self.acted.len().to_string();
            // The number of a job is its first field.
            let size = u32::from_be_bytes(*message[5..].first_chunk().unwrap()) as usize;
            let job = &message[9..9 + size];
            let output = vec![b'o'; 3 * LOG_PIECE];
            let log = &mut self.directory.log;
            log.extend(event(b'o', &[job, &output]));
            log.extend(event(b'd', &[job, b"exit", b"0", number.as_bytes(), b"0", b"", b""]));
            self.directory.commands.remove(&next);
        }
    }

    fn call(&mut self, which: usize, size: usize) {
        let directory = &mut self.directory;
        let count = self.callers.len();
        let caller = &mut self.callers[which % count];
        let id = |caller: &Caller| format!("{:016x}-{}", caller.name, caller.sequence);
        if caller.waiting {
            let name = id(caller);
            if !directory.requests.contains_key(&name) && !directory.answers.contains_key(&name) {
                directory.requests.insert(name.clone(), self.requests[&name].clone());
            }
            if let Some(answer) = directory.answers.get(&name).cloned() {
                directory.requests.remove(&name);
                directory.answers.remove(&name);
                caller.answers.push(answer);
                caller.waiting = false;
            }
        } else if caller.sequence < caller.calls {
            caller.sequence += 1;
            caller.waiting = true;
            let name = id(caller);
            let request = request_of(&name, size);
            directory.requests.insert(name.clone(), request.clone());
            self.requests.insert(name, request);
        }
    }

    /// A request comes once more, whatever became of it.
    fn repeat_call(&mut self, which: usize) {
        let count = self.requests.len();
        if let (Some(relay), Some((id, body))) = (&mut self.relay, self.requests.iter().nth(which % count.max(1)))
            && relay.resumed
            && body.len() <= MAX_PAYLOAD
        {
            relay.say(Frame::whole(kind::CALL, id.clone(), body.clone()));
        }
    }

    /// A part of the log comes once more.
    fn repeat_log(&mut self, bytes: usize) {
        if let Some(relay) = &mut self.relay {
            relay.log_sent = relay.log_sent.saturating_sub(bytes as u64);
        }
    }

    /// A script removes the directory; the supervisor makes it anew. Only what it holds open is still there.
    fn wipe(&mut self) {
        self.was_wiped = true;
        let old = std::mem::take(&mut self.directory);
        self.directory.taken = old.taken;
        self.directory.log = old.log;
        self.directory.acked = old.acked;
        self.cut();
        self.former.clear();
    }

    /// The same, but only bodies are lost, and the relay goes on.
    fn lose_blobs(&mut self) {
        self.directory.blobs.clear();
        self.directory.complete.clear();
    }

    /// Some undisturbed steps.
    fn go_on(&mut self, steps: usize) {
        for step in 0..steps {
            self.say();
            for _ in 0..4 {
                self.relay(false);
                self.hear();
            }
            if step % 3 == 0 {
                self.supervise();
                self.answer(step);
            }
        }
    }

    /// One action or one frame of a relay; of a former one, what it says is lost.
    fn relay(&mut self, former: bool) {
        let directory = &mut self.directory;
        let relay = if former {
            self.former.last_mut()
        } else {
            self.relay.as_mut()
        };
        let Some(relay) = relay else { return };
        if let Some(action) = relay.actions.pop_front() {
            relay.act(action, directory);
        } else if let Some(frame) = relay.inbox.pop_front() {
            relay.obey(frame, directory);
        } else if relay.resumed {
            relay.tell(directory);
        }
        let said: Vec<Frame> = relay.outbox.drain(..).collect();
        if !former {
            self.to_host.extend(said);
        }
    }

    // The whole.

    /// Lets it run undisturbed until nothing happens any more.
    fn settle(&mut self, is_look: bool) {
        self.link(is_look);
        for round in 0..5_000 {
            if is_look && round % 50 == 49 {
                self.link(true);
            }
            self.host.acknowledge_all();
            self.say();
            for _ in 0..4 {
                self.relay(false);
                self.hear();
            }
            self.supervise();
            self.answer(round);
            self.take_event();
            for which in 0..self.callers.len() {
                self.call(which, 10);
            }
            if self.is_settled() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn is_settled(&self) -> bool {
        let callers = self
            .callers
            .iter()
            .all(|caller| caller.sequence == caller.calls && !caller.waiting);
        // Of some commands nothing is told: they may still be on their way.
        let at_rest = |relay: &Relay| relay.inbox.is_empty() && relay.actions.is_empty();
        callers
            && self.relay.as_ref().is_none_or(at_rest)
            && self.running.is_empty()
            && self.to_host.is_empty()
            && self.directory.commands.is_empty()
            && !self.host.is_busy()
            && !self.host.has_event()
            && self.directory.acked == self.directory.log.len() as u64
    }
}

impl Relay {
    fn say(&mut self, frame: Frame) {
        self.said += frame.size() as u64;
        self.outbox.push_back(frame);
    }

    fn act(&mut self, action: Action, directory: &mut Directory) {
        match action {
            Action::Say(frame) => self.say(frame),
            Action::StoreAnswer(id, body) => {
                directory.answers.insert(id, body);
            }
            Action::StoreAnswerBlob(id, blob) => {
                if directory.complete.remove(&blob) {
                    let body = directory.blobs.remove(&blob).unwrap();
                    directory.answers.insert(id.clone(), body);
                    self.actions
                        .push_front(Action::Say(Frame::whole(kind::SETTLED, id.clone(), "")));
                    self.actions.push_front(Action::RemoveRequest(id));
                } else {
                    self.actions
                        .push_front(Action::Say(Frame::whole(kind::REFUSED, id, "no such blob")));
                }
            }
            Action::RemoveRequest(id) => {
                directory.requests.remove(&id);
            }
        }
    }

    fn obey(&mut self, frame: Frame, directory: &mut Directory) {
        let key = String::from_utf8(frame.key.to_vec()).unwrap();
        let then = |actions: &mut VecDeque<Action>, frame| actions.push_back(Action::Say(frame));
        match frame.kind {
            kind::RESUME => {
                let resume: serde_json::Value = serde_json::from_slice(&frame.payload).unwrap();
                self.resumed = true;
                self.log_sent = resume["log"].as_u64().unwrap();
                for (id, have) in resume["calls"].as_object().unwrap() {
                    let whole = directory
                        .requests
                        .get(id)
                        .is_some_and(|body| body.len() as u64 <= have.as_u64().unwrap());
                    if whole {
                        self.calls_sent.insert(id.clone());
                    }
                }
            }
            kind::COMMAND | kind::COMMAND_BLOB => {
                let number: u64 = key.parse().unwrap();
                let known = number <= directory.taken || directory.commands.contains_key(&number);
                if !known && frame.kind == kind::COMMAND_BLOB {
                    let blob = String::from_utf8(frame.payload.to_vec()).unwrap();
                    if !directory.complete.remove(&blob) {
                        return then(&mut self.actions, Frame::whole(kind::REFUSED, key, "no such blob"));
                    }
                    directory
                        .commands
                        .insert(number, directory.blobs.remove(&blob).unwrap());
                } else if !known {
                    directory.commands.insert(number, frame.payload.to_vec());
                }
                then(&mut self.actions, Frame::whole(kind::COMMAND_STORED, key, ""));
            }
            kind::BLOB => {
                let part = directory.blobs.entry(key.clone()).or_default();
                let known = (part.len() as u64).saturating_sub(frame.offset) as usize;
                if frame.offset <= part.len() as u64 {
                    part.extend_from_slice(&frame.payload[known.min(frame.payload.len())..]);
                    if frame.last {
                        directory.complete.insert(key.clone());
                    }
                }
                let stored = Frame {
                    offset: part.len() as u64,
                    ..Frame::whole(kind::BLOB_STORED, key, "")
                };
                then(&mut self.actions, stored);
            }
            kind::ANSWER | kind::ANSWER_BLOB => {
                if directory.requests.contains_key(&key) {
                    if frame.kind == kind::ANSWER {
                        self.actions
                            .push_back(Action::StoreAnswer(key.clone(), frame.payload.to_vec()));
                    } else {
                        let blob = String::from_utf8(frame.payload.to_vec()).unwrap();
                        if !directory.complete.contains(&blob) && directory.answers.contains_key(&key) {
                            // The relay before died when it had stored it.
                            self.actions.push_back(Action::RemoveRequest(key.clone()));
                            return then(&mut self.actions, Frame::whole(kind::SETTLED, key, ""));
                        }
                        return self.actions.push_back(Action::StoreAnswerBlob(key, blob));
                    }
                    self.actions.push_back(Action::RemoveRequest(key.clone()));
                }
                then(&mut self.actions, Frame::whole(kind::SETTLED, key, ""));
            }
            kind::ACKNOWLEDGED => directory.acked = directory.acked.max(frame.offset),
            kind::WINDOW => self.consumed = self.consumed.max(frame.offset),
            kind::LEASE => then(&mut self.actions, Frame::number(kind::ALIVE, frame.offset)),
            other => panic!("{other}"),
        }
    }

    /// Says one thing that is new.
    fn tell(&mut self, directory: &Directory) {
        if self.said + 2 * MAX_PAYLOAD as u64 > self.consumed + u64::from(WINDOW) {
            return;
        }
        let new = directory
            .requests
            .iter()
            .find(|(id, _)| !self.calls_sent.contains(*id) && !directory.answers.contains_key(*id));
        if let Some((id, body)) = new {
            self.calls_sent.insert(id.clone());
            let pieces: Vec<&[u8]> = body.chunks(MAX_PAYLOAD).collect();
            for (at, piece) in pieces.iter().enumerate() {
                let frame = Frame {
                    last: at + 1 == pieces.len(),
                    offset: (at * MAX_PAYLOAD) as u64,
                    ..Frame::whole(kind::CALL, id.clone(), piece.to_vec())
                };
                self.actions.push_back(Action::Say(frame));
            }
        } else if self.log_sent < directory.log.len() as u64 {
            let start = self.log_sent as usize;
            let end = (start + LOG_PIECE).min(directory.log.len());
            self.log_sent = end as u64;
            self.say(Frame {
                offset: start as u64,
                ..Frame::whole(kind::LOG, "", directory.log[start..end].to_vec())
            });
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Say,
    Hear,
    Relay,
    Former,
    Supervise,
    Answer(usize),
    Take,
    Acknowledge,
    GoOn(usize),
    RepeatCall(usize),
    RepeatLog(usize),
    Wipe,
    LoseBlobs,
    Call(usize, usize),
    Command(usize),
    Hold,
    Cut,
    Kill,
    Link(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![8 => 0_usize..50, 1 => (MAX_PAYLOAD - 40)..(MAX_PAYLOAD + 40), 1 => Just(5 * MAX_PAYLOAD)];
    prop_oneof![
        16 => Just(Step::Say),
        24 => Just(Step::Hear),
        32 => Just(Step::Relay),
        4 => Just(Step::Former),
        8 => Just(Step::Supervise),
        8 => any::<usize>().prop_map(Step::Answer),
        8 => Just(Step::Take),
        6 => Just(Step::Acknowledge),
        6 => (1_usize..12).prop_map(Step::GoOn),
        4 => any::<usize>().prop_map(Step::RepeatCall),
        3 => (1_usize..300).prop_map(Step::RepeatLog),
        12 => (any::<usize>(), size.clone()).prop_map(|(which, size)| Step::Call(which, size)),
        4 => size.prop_map(Step::Command),
        4 => Just(Step::Hold),
        1 => Just(Step::Cut),
        1 => Just(Step::Kill),
        1 => Just(Step::LoseBlobs),
        5 => any::<bool>().prop_map(Step::Link),
        1 => prop::bool::weighted(0.2).prop_map(|wipe| if wipe { Step::Wipe } else { Step::Say }),
    ]
}

/// What any run of these commands comes to.
fn expected_events(world: &World, commands: usize) -> Vec<String> {
    // Jobs overtake each other; each of them is told of once, its output before its end.
    let mut events = Vec::new();
    for message in world.acted.iter().filter(|message| !is_hold(message)) {
        let size = u32::from_be_bytes(*message[5..].first_chunk().unwrap()) as usize;
        let job = String::from_utf8_lossy(&message[9..9 + size]).into_owned();
        events.push(format!("output {job} {}", 3 * LOG_PIECE));
        events.push(format!("done {job}"));
    }
    assert_eq!(world.acted.len(), commands);
    events
}

fn check(world: &World, commands: &[LinkCommand]) {
    // I4: every command acted once, and as it was sent.
    let mut acted = world.acted.clone();
    let mut sent: Vec<Vec<u8>> = commands.iter().map(|command| command.encode().to_vec()).collect();
    // I5: of a clock the last word counts, so they keep their order.
    let holds = |all: &[Vec<u8>]| -> Vec<Vec<u8>> { all.iter().filter(|one| is_hold(one)).cloned().collect() };
    assert_eq!(holds(&acted), holds(&sent));
    acted.sort();
    sent.sort();
    assert!(acted == sent, "{} of {} commands acted", acted.len(), sent.len());
    // I3: every event came once, in the order of the log.
    assert_eq!(world.events, expected_events(world, commands.len()));
    // I1: every call was dispatched once.
    let mut dispatched = world.dispatched.clone();
    dispatched.sort();
    dispatched.dedup();
    assert_eq!(dispatched.len(), world.dispatched.len());
    // I2: every request was answered once, with its own answer.
    for caller in &world.callers {
        assert_eq!(caller.answers.len() as u64, caller.calls);
        for (at, answer) in caller.answers.iter().enumerate() {
            let id = format!("{:016x}-{}", caller.name, at + 1);
            let expected = answer_of(&request_of(&id, 0), 0);
            // What was put in place may have gone with the directory.
            let was_lost = world.was_wiped && answer == LOST;
            assert!(
                was_lost || answer.starts_with(&expected),
                "{}",
                String::from_utf8_lossy(&answer[..60])
            );
        }
    }
}

fn run(steps: &[Step], callers: u64, answer_size: usize) -> (World, Vec<LinkCommand>) {
    let mut world = World::new(callers, 6, answer_size);
    let mut commands = Vec::new();
    for step in steps {
        match step {
            Step::Say => world.say(),
            Step::Hear => world.hear(),
            Step::Relay => world.relay(false),
            Step::Former => world.relay(true),
            Step::Supervise => world.supervise(),
            Step::Answer(which) => world.answer(*which),
            Step::Take => world.take_event(),
            Step::Acknowledge => world.host.acknowledge_all(),
            Step::GoOn(steps) => world.go_on(*steps),
            Step::RepeatCall(which) => world.repeat_call(*which),
            Step::RepeatLog(bytes) => world.repeat_log(*bytes),
            Step::Wipe => world.wipe(),
            Step::LoseBlobs => world.lose_blobs(),
            Step::Call(which, size) => world.call(*which, *size),
            Step::Command(size) => {
                let command = job(commands.len() as u64 + 1, *size);
                world.host.command(&command);
                commands.push(command);
            }
            Step::Hold => {
                let command = hold(commands.len() as u64 + 1);
                world.host.command(&command);
                commands.push(command);
            }
            Step::Cut => world.cut(),
            Step::Kill => world.kill(),
            Step::Link(is_look) => world.link(*is_look),
        }
    }
    world.settle(answer_size % 2 == 1);
    (world, commands)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_doubled_however_links_break(
        steps in prop::collection::vec(step(), 0..500),
        callers in 1_u64..4,
        answer_size in prop_oneof![4 => 0_usize..40, 1 => (MAX_PAYLOAD - 60)..(MAX_PAYLOAD + 10), 1 => Just(3 * MAX_PAYLOAD)],
    ) {
        let (world, commands) = run(&steps, callers, answer_size);
        check(&world, &commands);
    }
}
