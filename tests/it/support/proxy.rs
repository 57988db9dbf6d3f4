//! A proxy between an auditor and a coordinator that forwards everything and changes some
//! responses.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

type EditBody = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// A listening proxy. Its thread ends with the test's process.
pub(crate) struct Proxy {
    pub(crate) url: String,
}

impl Proxy {
    /// Forwards to a market, and changes the bodies of responses to paths that contain `path`.
    pub(crate) fn before(
        market: &str,
        path: &'static str,
        change: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let upstream = market.strip_prefix("http://").unwrap().to_owned();
        let change: EditBody = Arc::new(change);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, change) = (upstream.clone(), Arc::clone(&change));
                std::thread::spawn(move || pass(client, &upstream, path, &change));
            }
        });
        Self { url }
    }
}

/// Forwards one request and its response, then closes both connections.
fn pass(mut client: TcpStream, upstream: &str, path: &str, change: &EditBody) -> Option<()> {
    let (head, body) = message(&mut client)?;
    let mut server = TcpStream::connect(upstream).ok()?;
    server.write_all(without_keep_alive(&head).as_bytes()).ok()?;
    server.write_all(&body).ok()?;
    let (answer, mut content) = message(&mut server)?;
    let good = answer.starts_with("HTTP/1.1 200");
    if good && head.lines().next()?.contains(path) {
        content = change(&content);
    }
    let status = answer.lines().next()?;
    let kind = answer.lines().find(|line| line.to_ascii_lowercase().starts_with("content-type"));
    let reply = format!(
        "{status}\r\n{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        kind.unwrap_or("content-type: application/octet-stream"),
        content.len()
    );
    client.write_all(reply.as_bytes()).ok()?;
    client.write_all(&content).ok()
}

/// Adds `connection: close` to a head.
pub(super) fn without_keep_alive(head: &str) -> String {
    let headers: Vec<&str> = head
        .lines()
        .filter(|line| !line.is_empty() && !line.to_ascii_lowercase().starts_with("connection:"))
        .collect();
    format!("{}\r\nconnection: close\r\n\r\n", headers.join("\r\n"))
}

/// Reads the head and the body of an HTTP message. A response without a content length is read to
/// its end.
pub(super) fn message(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut byte = [0u8; 1];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0u8; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    if length.is_none() && head.starts_with("HTTP") {
        stream.read_to_end(&mut body).ok()?;
    }
    Some((head, body))
}
