//! A proxy between processes and their coordinator that counts requests, and kills a process at a
//! chosen request.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};

use super::proxy::{message, without_keep_alive};

/// The moment of the kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillPoint {
    /// Before the coordinator receives the request.
    BeforeRequest,
    /// After the coordinator's response, before it is forwarded.
    AfterResponse,
}

/// The process to kill, and the moment.
#[derive(Debug, Clone, Copy)]
struct Trip {
    who: Pid,
    when: KillPoint,
    /// Number of requests to let pass first.
    after: usize,
}

#[derive(Debug, Default)]
struct Wire {
    trip: Option<Trip>,
    passed: Vec<String>,
    sprung: Option<String>,
}

/// A listening tripwire. Its threads end with the test's process.
pub(crate) struct Tripwire {
    pub(crate) url: String,
    wire: Arc<Mutex<Wire>>,
}

impl Tripwire {
    /// A tripwire to a market, not armed.
    pub(crate) fn before(address: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let tripwire = Self { url, wire: Arc::default() };
        let (upstream, wire) = (address.to_owned(), Arc::clone(&tripwire.wire));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, wire) = (upstream.clone(), Arc::clone(&wire));
                std::thread::spawn(move || pass(client, &upstream, &wire));
            }
        });
        tripwire
    }

    /// Kills this process at the `nth` request from now on, counted from 0. The process must not
    /// have been waited for yet.
    pub(crate) fn arm(&self, who: Pid, nth: usize, when: KillPoint) {
        self.wire.lock().unwrap().trip = Some(Trip { who, when, after: nth });
    }

    /// The request at which the process was killed, if it was.
    pub(crate) fn triggered(&self) -> Option<String> {
        self.wire.lock().unwrap().sprung.clone()
    }

    /// The requests so far, in order, such as `POST /v1/work`.
    pub(crate) fn passed(&self) -> Vec<String> {
        self.wire.lock().unwrap().passed.clone()
    }
}

/// Method and path of a request: `POST /v1/work`.
fn asked(head: &str) -> &str {
    let line = head.lines().next().unwrap_or_default();
    line.split([' ', '?']).nth(1).map_or(line, |path| {
        let end = line.find(path).map_or(line.len(), |at| at + path.len());
        &line[..end]
    })
}

/// Counts a request; returns the trip that it triggers.
fn count(wire: &Mutex<Wire>, what: &str) -> Option<Trip> {
    let mut wire = wire.lock().unwrap();
    wire.passed.push(what.to_owned());
    match wire.trip.as_mut() {
        Some(trip) if trip.after > 0 => {
            trip.after -= 1;
            None
        }
        _ => wire.trip.take(),
    }
}

/// Forwards one request and its response, then closes both connections.
fn pass(mut client: TcpStream, upstream: &str, wire: &Mutex<Wire>) -> Option<()> {
    let (head, body) = message(&mut client)?;
    let what = asked(&head);
    let trip = count(wire, what);
    let kill_at = |now: KillPoint| {
        let trip = trip.filter(|trip| trip.when == now)?;
        kill_process(trip.who, Signal::KILL).expect("the process has not been waited for");
        wire.lock().unwrap().sprung = Some(format!("{what} ({now:?})"));
        Some(())
    };
    if kill_at(KillPoint::BeforeRequest).is_some() {
        return None;
    }
    let mut server = TcpStream::connect(upstream).ok()?;
    server.write_all(without_keep_alive(&head).as_bytes()).ok()?;
    server.write_all(&body).ok()?;
    let (answer, content) = message(&mut server)?;
    if kill_at(KillPoint::AfterResponse).is_some() {
        return None;
    }
    client.write_all(without_keep_alive(&answer).as_bytes()).ok()?;
    client.write_all(&content).ok()
}
