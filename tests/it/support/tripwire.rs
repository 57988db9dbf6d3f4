//! Somebody between programs and their coordinator who counts requests, and kills a process at the one that it waits for.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};

use super::proxy::{message, without_keep_alive};

/// When the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// The coordinator has not heard of the request.
    Before,
    /// It has answered, and nobody has heard the answer.
    Answered,
}

/// Who dies, and when.
#[derive(Debug, Clone, Copy)]
struct Trip {
    who: Pid,
    when: When,
    /// Requests that still pass.
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
    /// Stands before a market, and lets everything pass.
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

    /// Kills this process at the `nth` request from now on; the first is 0. Nobody may have waited for its end yet.
    pub(crate) fn set(&self, who: Pid, nth: usize, when: When) {
        self.wire.lock().unwrap().trip = Some(Trip { who, when, after: nth });
    }

    /// The request at which it killed, once it has.
    pub(crate) fn sprung(&self) -> Option<String> {
        self.wire.lock().unwrap().sprung.clone()
    }

    /// What has passed so far, in order: `POST /v1/work`.
    pub(crate) fn passed(&self) -> Vec<String> {
        self.wire.lock().unwrap().passed.clone()
    }
}

/// What is asked for: `POST /v1/work`.
fn asked(head: &str) -> &str {
    let line = head.lines().next().unwrap_or_default();
    line.split([' ', '?']).nth(1).map_or(line, |path| {
        let end = line.find(path).map_or(line.len(), |at| at + path.len());
        &line[..end]
    })
}

/// Counts a request; the trip that it springs.
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

/// One request and its answer, then both connections close.
fn pass(mut client: TcpStream, upstream: &str, wire: &Mutex<Wire>) -> Option<()> {
    let (head, body) = message(&mut client)?;
    let what = asked(&head);
    let trip = count(wire, what);
    let kill_at = |now: When| {
        let trip = trip.filter(|trip| trip.when == now)?;
        kill_process(trip.who, Signal::KILL).expect("nobody has waited for its end");
        wire.lock().unwrap().sprung = Some(format!("{what} ({now:?})"));
        Some(())
    };
    if kill_at(When::Before).is_some() {
        return None;
    }
    let mut server = TcpStream::connect(upstream).ok()?;
    server.write_all(without_keep_alive(&head).as_bytes()).ok()?;
    server.write_all(&body).ok()?;
    let (answer, content) = message(&mut server)?;
    if kill_at(When::Answered).is_some() {
        return None;
    }
    client.write_all(without_keep_alive(&answer).as_bytes()).ok()?;
    client.write_all(&content).ok()
}
