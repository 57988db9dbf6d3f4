//! A large upload survives disconnects, a killed coordinator and a graceful shutdown; an abandoned
//! upload is removed with its round.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;

use florin_participant::{Client, ClientConfig};
use florin_protocol::{Offer, RoundNumber, Signed, TaskId, TaskPhase, UpdateHeader};

use crate::support::process::{PATIENCE, until};
use crate::support::sender::{Sender, framed};
use crate::support::{On, TestMarket, TestPlan};

/// Bytes that pass on a connection before it is cut.
const CUT: u64 = 150_000;
/// Accounts that commit.
const NAMES: [&str; 4] = ["cut", "killed", "stopped", "gone"];

/// A proxy to a coordinator that cuts every connection.
fn breaking(address: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let address = address.to_owned();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let server = TcpStream::connect(&address).unwrap();
            let (mut back, mut answers) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut answers, &mut back));
            thread::spawn(move || {
                let _ = std::io::copy(&mut (&mut client).take(CUT), &mut &server);
                for stream in [&client, &server] {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            });
        }
    });
    url
}

struct Round1 {
    market: TestMarket,
    task: TaskId,
    senders: Vec<Sender>,
    offer: Offer,
    updates: Vec<Vec<u8>>,
}

impl Round1 {
    /// A round with a model of 600 KB in which all accounts have committed.
    fn open() -> Self {
        let mut plan = TestPlan::honest(On::Embedded, 1);
        plan.participants.clear();
        plan.others.extend(NAMES);
        plan.target = NAMES.len();
        plan.provider = false;
        // Uploads are due after both phases; the last part of the test waits for that deadline.
        (plan.train_ms, plan.reveal_ms) = (30_000, 30_000);
        let mut market = TestMarket::open(plan);
        market.environment =
            vec![("FLORIN_COORDINATOR_SHUTDOWN_MS".to_owned(), "60000".to_owned())];
        let file = market.file("task.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let larger = text.replace("kind = \"softmax\"\n", "kind = \"mlp\"\nhidden = [2000]\n");
        assert_ne!(text, larger);
        std::fs::write(&file, larger).unwrap();
        let task = market.publish();
        let senders = NAMES.map(|name| Sender::join(&market, task, name, "10"));
        let view = market.wait_for(task, 1, TaskPhase::Committing);
        let offer = view.offer.unwrap().body;
        let parameters = florin_work::model_spec(&view.spec.model).parameters();
        let update = |n: usize| vec![1e-5 * (n + 1) as f32; parameters];
        let updates: Vec<_> = (0..NAMES.len())
            .map(|n| florin_work::encode_parameters(&view.spec, &update(n)))
            .collect();
        for (sender, bytes) in senders.iter().zip(&updates) {
            assert_eq!(sender.send_commit(&sender.commit(&sender.header(&offer, bytes))), "OK");
        }
        market.wait_for(task, 1, TaskPhase::Revealing);
        Self { market, task, senders: senders.into(), offer, updates }
    }

    fn header(&self, n: usize) -> Signed<UpdateHeader> {
        let sender = &self.senders[n];
        sender.node.sign(sender.header(&self.offer, &self.updates[n]))
    }

    /// Sends half of an update, and waits until the coordinator has received it.
    fn half(&self, n: usize) -> (TcpStream, Vec<u8>) {
        let mut body = framed(&self.header(n), &self.updates[n]);
        let mut stream = TcpStream::connect(self.market.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("content-length: {}\r\n\r\n", body.len());
        let path = format!("/v1/tasks/{}/updates", self.task);
        write!(stream, "POST {path} HTTP/1.1\r\nhost: x\r\n{head}").unwrap();
        let rest = body.split_off(body.len() / 2);
        stream.write_all(&body).unwrap();
        until("the coordinator has half of the update", || (self.here(n) > 200_000).then_some(()));
        (stream, rest)
    }

    fn here(&self, n: usize) -> u64 {
        self.market.client().upload_state(&self.header(n)).unwrap().offset
    }

    fn unfinished(&self) -> usize {
        let folder = PathBuf::from(self.market.file("coordinator/blobs/uploads"));
        std::fs::read_dir(folder).unwrap().count()
    }
}

#[test]
fn a_large_upload_survives_disconnects_and_restarts_and_an_abandoned_one_is_removed() {
    let mut round = Round1::open();
    // The connection is cut every 150 KB; the participant's client resumes by itself.
    let line = Client::connect(&ClientConfig::new(breaking(round.market.address()))).unwrap();
    let (header, bytes) = (round.header(0), round.updates[0].clone());
    assert!(bytes.len() as u64 > 3 * CUT);
    let receipt = line.upload(&header, &bytes).unwrap();
    assert_eq!(round.market.client().upload(&header, &bytes).unwrap(), receipt);

    // Killed during the upload and restarted, the coordinator resumes at the last byte.
    let (_upload, _) = round.half(1);
    let there = round.here(1);
    round.market.restart_coordinator();
    assert_eq!(round.here(1), there);
    round.market.client().upload(&round.header(1), &round.updates[1]).unwrap();

    // After SIGTERM, the coordinator completes the upload first.
    let (mut upload, rest) = round.half(2);
    round.market.coordinator.ask_to_stop();
    let address = round.market.address().to_owned();
    until("connections are refused", || TcpStream::connect(&address).is_err().then_some(()));
    upload.write_all(&rest).unwrap();
    let mut answer = String::new();
    upload.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    round.market.coordinator.finish();
    round.market.start_coordinator_again();
    assert_eq!(round.market.view(round.task).revealed, 3);

    // The fourth upload is abandoned. The round closes without it, and its bytes are removed.
    let (upload, _) = round.half(3);
    drop(upload);
    assert_eq!(round.unfinished(), 1);
    until("the round closes", || (round.market.view(round.task).reported == 1).then_some(()));
    until("the abandoned upload is removed", || (round.unfinished() == 0).then_some(()));
    let report = round.market.report(round.task, 1);
    assert_eq!((report.scope.round, report.entries.len()), (RoundNumber(1), 3));
}
