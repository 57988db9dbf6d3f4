//! A stand-in for the API server of Kubernetes: jobs of one namespace, whose containers run as processes of this machine.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

type Jobs = Arc<Mutex<BTreeMap<String, (Value, Child)>>>;

/// The stand-in. Its jobs end on drop.
pub(crate) struct Kubernetes {
    kubeconfig: PathBuf,
    jobs: Jobs,
    created: Arc<Mutex<usize>>,
}

impl Kubernetes {
    /// Starts one, whose kubeconfig is in a folder.
    pub(crate) fn start(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let kubeconfig = folder.join("kubeconfig.json");
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "one", "cluster": { "server": server } }],
            "users": [{ "name": "ann", "user": { "token": "secret" } }],
            "contexts": [{
                "name": "here",
                "context": { "cluster": "one", "user": "ann", "namespace": "compute" },
            }],
            "current-context": "here",
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let (jobs, created) = (Jobs::default(), Arc::new(Mutex::new(0)));
        let (shared, count) = (Arc::clone(&jobs), Arc::clone(&created));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &shared, &count);
            }
        });
        Self { kubeconfig, jobs, created }
    }

    /// The variable by which a program finds it.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        vec![("KUBECONFIG".to_owned(), self.kubeconfig.display().to_string())]
    }

    /// The number of jobs, and of all that were ever created.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.jobs.lock().unwrap().len(), *self.created.lock().unwrap())
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        for (_, child) in self.jobs.lock().unwrap().values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

const JOBS: &str = "/apis/batch/v1/namespaces/compute/jobs";

fn serve(stream: TcpStream, jobs: &Jobs, created: &Mutex<usize>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut length, mut token) = (0, String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let Some((name, value)) = header.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "authorization" => token = value.trim().to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    assert_eq!(token, "Bearer secret");
    let path = target.split('?').next().unwrap_or_default();
    let (code, answer) = match (method, path.strip_prefix(JOBS)) {
        ("GET", Some("")) => (200, list(jobs)),
        ("POST", Some("")) => create(jobs, created, serde_json::from_slice(&body).unwrap()),
        ("DELETE", Some(name)) => remove(jobs, name.trim_start_matches('/')),
        _ => (404, status(404, "NotFound")),
    };
    let text = answer.to_string();
    let head = format!(
        "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    let mut stream = stream;
    let _ = stream.write_all((head + &text).as_bytes());
}

fn status(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
            "message": reason, "code": code })
}

fn list(jobs: &Jobs) -> Value {
    let mut jobs = jobs.lock().unwrap();
    let items: Vec<Value> = jobs
        .values_mut()
        .map(|(job, child)| {
            let status = match child.try_wait().unwrap() {
                None => json!({ "active": 1, "ready": 1 }),
                Some(exit) => {
                    let kind = if exit.success() { "Complete" } else { "Failed" };
                    json!({ "conditions": [{ "type": kind, "status": "True" }] })
                }
            };
            let mut job = job.clone();
            job["status"] = status;
            job
        })
        .collect();
    json!({ "kind": "JobList", "apiVersion": "batch/v1", "metadata": {}, "items": items })
}

/// Runs the container as a process with an empty environment but for the folder of libtorch, as an image has it.
fn create(jobs: &Jobs, created: &Mutex<usize>, job: Value) -> (u16, Value) {
    let mut jobs = jobs.lock().unwrap();
    let name = job["metadata"]["name"].as_str().unwrap().to_owned();
    if jobs.contains_key(&name) {
        return (409, status(409, "AlreadyExists"));
    }
    let words = job["spec"]["template"]["spec"]["containers"][0]["command"].as_array().unwrap();
    let words: Vec<&str> = words.iter().map(|word| word.as_str().unwrap()).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env_clear().stdin(Stdio::null());
    for variable in ["LD_LIBRARY_PATH", "PATH"] {
        command.envs(std::env::var_os(variable).map(|value| (variable, value)));
    }
    let child = command.spawn().unwrap();
    *created.lock().unwrap() += 1;
    jobs.insert(name, (job.clone(), child));
    (201, job)
}

fn remove(jobs: &Jobs, name: &str) -> (u16, Value) {
    match jobs.lock().unwrap().remove(name) {
        Some((job, mut child)) => {
            let _ = child.kill();
            let _ = child.wait();
            (200, job)
        }
        None => (404, status(404, "NotFound")),
    }
}
