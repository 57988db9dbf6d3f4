//! An S3 service for all tests of this process, and a TCP proxy in front of it that can be shut.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use florin_coordinator::config::BucketSettings;
use serde::Deserialize;

/// A moto server with one bucket and one access key.
#[derive(Debug, Deserialize)]
pub(crate) struct Service {
    pub(crate) endpoint: String,
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) secret: String,
}

impl Service {
    /// The credential that an environment variable would have.
    pub(crate) fn credential(&self, variable: &str) -> Option<String> {
        match variable {
            "AWS_ACCESS_KEY_ID" => Some(self.key.clone()),
            "AWS_SECRET_ACCESS_KEY" => Some(self.secret.clone()),
            _ => None,
        }
    }

    /// Settings with a prefix in the bucket that no other test uses.
    pub(crate) fn settings(&self, test: &str) -> BucketSettings {
        BucketSettings {
            url: Some(format!("s3://{}/{test}", self.bucket)),
            endpoint: Some(self.endpoint.clone()),
            ..BucketSettings::default()
        }
    }
}

/// The service; it ends with this process, when its standard input closes.
pub(crate) fn service() -> &'static Service {
    static SERVICE: OnceLock<(Service, Mutex<Child>)> = OnceLock::new();
    let (service, _) = SERVICE.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let packages = root.join(".tools/s3");
        assert!(packages.is_dir(), "{} is missing: run `cargo xtask setup`", packages.display());
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", &packages).arg(root.join("tests/s3/server.py"));
        let started = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.expect("python3 starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let service = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        (service, Mutex::new(child))
    });
    service
}

/// A TCP proxy to the service. Shutting it closes all connections and refuses new ones.
pub(crate) struct TcpProxy {
    address: SocketAddr,
    inner: Arc<ProxyInner>,
}

#[derive(Default)]
struct ProxyInner {
    shut: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl TcpProxy {
    pub(crate) fn new(service: &Service) -> Self {
        let to = service.endpoint.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(ProxyInner::default());
        let seen = Arc::clone(&inner);
        std::thread::spawn(move || {
            for line in listener.incoming() {
                if let (Ok(here), Ok(there)) = (line, TcpStream::connect(&to)) {
                    seen.forward(&here, &there);
                }
            }
        });
        Self { address, inner }
    }

    pub(crate) fn settings(&self, service: &Service, test: &str) -> BucketSettings {
        let endpoint = Some(format!("http://{}", self.address));
        BucketSettings { endpoint, timeout_ms: 2_000, ..service.settings(test) }
    }

    pub(crate) fn shut(&self) {
        self.inner.shut.store(true, Ordering::SeqCst);
        for line in self.inner.connections.lock().unwrap().drain(..) {
            // The connection may have ended already.
            let _ = line.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn open(&self) {
        self.inner.shut.store(false, Ordering::SeqCst);
    }
}

impl ProxyInner {
    fn forward(&self, here: &TcpStream, there: &TcpStream) {
        let mut lines = self.connections.lock().unwrap();
        if self.shut.load(Ordering::SeqCst) {
            return;
        }
        for (from, to) in [(here, there), (there, here)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            lines.push(from.try_clone().unwrap());
            std::thread::spawn(move || {
                // Broken connections are the purpose of this proxy.
                let _ = copy_stream(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    }
}

fn copy_stream(from: &mut impl Read, to: &mut impl Write) -> io::Result<u64> {
    io::copy(from, to)
}
