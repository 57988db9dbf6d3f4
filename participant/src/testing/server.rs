//! The fake coordinator's HTTP server: one thread and one request per connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use florin_protocol::{ErrorCode, TaskPhase};

use super::coordinator::{FakeCoordinator, Fault};
use super::response::{FakeResponse, json, reject};

/// Serves on a free port until the process ends. Returns the URL.
pub(super) fn serve(state: Arc<(Mutex<FakeCoordinator>, Condvar)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let state = Arc::clone(&state);
            std::thread::spawn(move || stream.map(|stream| handle_connection(&stream, &state)));
        }
    });
    url
}

fn handle_connection(stream: &TcpStream, state: &(Mutex<FakeCoordinator>, Condvar)) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace();
    let method = words.next().unwrap().to_owned();
    let path = words.next().unwrap().trim_start_matches("/v1/").to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let header = header.trim().to_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if header.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let polls = path.starts_with("work/next") && !path.ends_with("wait_ms=0");
    if polls && state.0.lock().unwrap().has_fault(Fault::CutLongPolls) {
        return;
    }
    let (status, answer) = match handle_request(&method, &path, &body, state) {
        Ok(bytes) if bytes.is_empty() => (204, bytes),
        Ok(bytes) => (200, bytes),
        Err(rejection) if rejection.code == ErrorCode::StorageFull => {
            (507, json(&rejection).unwrap())
        }
        Err(rejection) => (409, json(&rejection).unwrap()),
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    let mut stream = stream;
    let _ = stream.write_all(&[head.as_bytes(), &answer].concat());
}

fn handle_request(
    method: &str,
    path: &str,
    body: &[u8],
    state: &(Mutex<FakeCoordinator>, Condvar),
) -> FakeResponse {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let number = |key: &str| {
        query.split('&').find_map(|part| part.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
    };
    let (lock, changed) = state;
    let mut state = lock.lock().unwrap();
    state.requests.push(format!("{method} {path}"));
    if state.faults.contains(&Fault::Unavailable) {
        return reject(ErrorCode::StorageFull);
    }
    if let (Some(after), Some(wait_ms)) = (number("after"), number("wait_ms")) {
        let waiting = |state: &mut FakeCoordinator| state.sequence <= after;
        let wait = Duration::from_millis(wait_ms);
        state = changed.wait_timeout_while(state, wait, waiting).unwrap().0;
    }
    if let (None, Some(wait_ms)) = (number("after"), number("wait_ms")) {
        let waiting =
            |state: &mut FakeCoordinator| state.order.is_none() && state.phase != TaskPhase::Done;
        let wait = Duration::from_millis(wait_ms);
        state = changed.wait_timeout_while(state, wait, waiting).unwrap().0;
    }
    let before = state.sequence;
    let parts: Vec<&str> = path.split('/').collect();
    let answer = match method {
        "GET" => state.get(&parts),
        _ => state.post(&parts, body),
    };
    if state.sequence != before {
        changed.notify_all();
    }
    answer
}
