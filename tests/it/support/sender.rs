//! A hostile participant: sends arbitrary messages, signed or unsigned, over plain HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;

use florin_participant::Wallet;
use florin_protocol::{
    Amount, Canonical, Commit, Digest, EnrolRequest, MarketId, NodeSigner, Offer, Registration,
    Role, Signed, TaskId, Timestamp, UpdateHeader, WalletSigner, blob_digest,
};

use super::TestMarket;

/// An account and its keys.
pub(crate) struct Sender {
    pub(crate) wallet: Wallet,
    pub(crate) node: NodeSigner,
    pub(crate) market: MarketId,
    pub(crate) task: TaskId,
    host: String,
}

impl Sender {
    /// Registers, bonds and enrols like an honest participant.
    pub(crate) fn join(market: &TestMarket, task: TaskId, name: &str, bond: &str) -> Self {
        let Self { wallet, node, market: market_id, host, .. } = Self::existing(market, task, name);
        let (client, ledger) = (market.client(), market.ledger());
        let expires = client.now().saturating_add_ms(600_000);
        let registration =
            Registration::sign(market_id, &wallet, &node, Role::Participant, expires).unwrap();
        client.register(&registration).unwrap();
        ledger.bond(&wallet, task, bond.parse::<Amount>().unwrap()).unwrap();
        let enrol = EnrolRequest::without_invitation(market_id, task, wallet.address(), expires);
        client.enrol(&node.sign(enrol)).unwrap();
        Self { wallet, node, market: market_id, task, host }
    }

    /// An account that has joined before.
    pub(crate) fn existing(market: &TestMarket, task: TaskId, name: &str) -> Self {
        let wallet = market.wallet(name);
        let (node, market_id) = (wallet.node_signer(), market.client().coordinator().market);
        let host = market.url.strip_prefix("http://").unwrap().to_owned();
        Self { wallet, node, market: market_id, task, host }
    }

    /// A header with valid fields.
    pub(crate) fn header(&self, offer: &Offer, bytes: &[u8]) -> UpdateHeader {
        UpdateHeader {
            scope: offer.scope,
            sender: self.wallet.address(),
            offer: offer.digest(),
            base_model: offer.base_model,
            rows: 10,
            update: blob_digest(bytes),
            bytes: bytes.len() as u64,
            salt: Digest([9; 32]),
            expires: Timestamp::MAX,
        }
    }

    /// The commit to a header.
    pub(crate) fn commit(&self, header: &UpdateHeader) -> Signed<Commit> {
        self.node.sign(Commit {
            scope: header.scope,
            sender: header.sender,
            offer: header.offer,
            commitment: header.commitment(),
        })
    }

    /// Sends a commit; returns the code of the rejection, or `OK`.
    pub(crate) fn send_commit(&self, commit: &Signed<Commit>) -> String {
        let body = serde_json::to_vec(commit).unwrap();
        self.post("commits", "application/json", &body, body.len())
    }

    /// Uploads bytes with a signed header; returns the code of the rejection, or `OK`.
    pub(crate) fn upload(&self, header: &Signed<UpdateHeader>, bytes: &[u8]) -> String {
        let body = framed(header, bytes);
        self.post("updates", "application/octet-stream", &body, body.len())
    }

    /// Uploads a raw body with the content length `length`.
    pub(crate) fn upload_raw(&self, body: &[u8], length: usize) -> String {
        self.post("updates", "application/octet-stream", body, length)
    }

    fn post(&self, what: &str, kind: &str, body: &[u8], length: usize) -> String {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let head = format!(
            "POST /v1/tasks/{}/{what} HTTP/1.1\r\nhost: {}\r\ncontent-type: {kind}\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n",
            self.task, self.host
        );
        // The server may respond and close the connection before it has read everything.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        if body.len() < length {
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        code_of(&String::from_utf8_lossy(&answer))
    }
}

/// The wire format of an upload.
pub(crate) fn framed(header: &Signed<UpdateHeader>, bytes: &[u8]) -> Vec<u8> {
    let head = header.to_bytes();
    let mut body = u32::try_from(head.len()).unwrap().to_le_bytes().to_vec();
    body.extend(head);
    body.extend(bytes);
    body
}

fn code_of(answer: &str) -> String {
    let status = answer.split_whitespace().nth(1).unwrap_or("no answer");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    if status.starts_with('2') {
        return "OK".to_owned();
    }
    let json: serde_json::Value = serde_json::from_str(body.trim()).unwrap_or_default();
    json["code"].as_str().map_or_else(|| format!("{status} {body}"), str::to_owned)
}
