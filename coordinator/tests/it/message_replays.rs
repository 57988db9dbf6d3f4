//! Every signed message is replayed: in the next round, in another task, on another chain, in
//! another deployment, after a restart, and sixty-four times concurrently. No message takes effect
//! twice, or outside its scope.

use axum::http::StatusCode;
use florin_protocol::*;
use tokio::task::JoinSet;

use crate::support::*;
use crate::test_coordinator::{
    TestCoordinator, digits_spec, holdout, send_to, upload_body, value_order, work_valuer,
};

/// Concurrent copies of a message.
const AT_ONCE: usize = 64;

/// A sent message, with its response.
#[derive(Clone)]
pub(crate) struct SentMessage {
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    pub(crate) status: StatusCode,
    pub(crate) answer: Vec<u8>,
}

/// A coordinator, with all signed messages of its first round.
pub(crate) struct RecordedRound {
    pub(crate) shop: TestCoordinator,
    pub(crate) messages: Vec<SentMessage>,
}

impl RecordedRound {
    async fn send(&mut self, what: &'static str, path: String, body: Vec<u8>) {
        let (status, answer) = self.shop.send("POST", &path, body.clone()).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(status.is_success(), "{what}: {status} {text}");
        self.messages.push(SentMessage { kind: what, path, body, status, answer });
    }
}

pub(crate) fn json(body: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap()
}

/// Plays a whole first round with a provider's work, and records each message.
pub(crate) async fn first_round(folder: &std::path::Path) -> RecordedRound {
    let shop = TestCoordinator::open(folder, digits_spec());
    let (task, expires, provider) = (shop.id, Timestamp(1_000_000), address(PROVIDER));
    let mut record = RecordedRound { shop, messages: Vec::new() };
    for (i, role) in (1..=4).map(|i| (i, Role::Participant)).chain([(PROVIDER, Role::Provider)]) {
        let body = json(&registration(i, role));
        record.send("a registration", "registrations".to_owned(), body).await;
    }
    record.shop.publish_task().await;
    for i in 1..=4 {
        let enrol = EnrolRequest::without_invitation(market(), task, address(i), expires);
        let body = json(&node(i).sign(enrol));
        record.send("an enrolment", format!("tasks/{task}/enrol"), body).await;
    }
    record.shop.wait_for_phase(TaskPhase::Committing).await;
    let mut updates = Vec::new();
    for i in 1..=4 {
        let (header, bytes) = record.shop.update(i).await;
        let commit = Commit {
            scope: header.scope,
            sender: header.sender,
            offer: header.offer,
            commitment: header.commitment(),
        };
        let body = json(&node(i).sign(commit));
        record.send("a commit", format!("tasks/{task}/commits"), body).await;
        updates.push(upload_body(&node(i).sign(header), &bytes));
    }
    // A provider that is ready before the updates arrive gets the work order; without one the
    // coordinator values the round itself.
    let query = node(PROVIDER).sign(WorkRequest { market: market(), task, provider, expires });
    let (status, _) = record.shop.send("POST", "work/next", json(&query)).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    for body in updates {
        record.send("an update", format!("tasks/{task}/updates"), body).await;
    }
    work(&mut record, task, &query).await;
    let mut view = record.shop.view().await;
    // Until the settlement is final, it changes the state by itself.
    while view.finalised == 0 {
        let path = format!("tasks/{task}?after={}&wait_ms=5000", view.sequence);
        view = record.shop.get(&path).await.unwrap();
    }
    record
}

/// A provider requests an order, fetches the updates, and submits its record.
async fn work(record: &mut RecordedRound, task: TaskId, query: &Signed<WorkRequest>) {
    let WorkRequest { provider, expires, .. } = query.body;
    let order: Signed<WorkOrder> =
        record.shop.post("work/next?wait_ms=30000", query).await.unwrap();
    let order = order.body;
    let ask = |digest| {
        let sender = address(PROVIDER);
        json(&node(PROVIDER).sign(BlobRequest { market: market(), task, digest, sender, expires }))
    };
    let update = ask(order.entries[0].update);
    record.send("a request for a blob", "work/blob".to_owned(), update).await;
    let mut updates = Vec::new();
    for entry in &order.entries {
        updates.push(record.shop.send("POST", "work/blob", ask(entry.update)).await.1);
    }
    let path = format!("tasks/{task}/rounds/1/holdout");
    let (_, rows) = record.shop.send("GET", &path, axum::body::Body::empty()).await;
    let result = value_order(&record.shop.spec, &order, (&rows, &updates));
    let body = WorkRecord { market: market(), order: order.digest(), provider, result };
    let body = json(&node(PROVIDER).sign(body));
    record.send("a work record", "work".to_owned(), body).await;
}

/// The engine's state.
async fn state(shop: &TestCoordinator) -> florin_engine::state::EngineState {
    shop.host.read(|engine, _| engine.state().clone()).await.unwrap()
}

/// Replays every message to a coordinator outside its scope: each is rejected with this code, and
/// the state does not change.
async fn assert_rejected_out_of_scope(
    shop: &TestCoordinator,
    messages: &[SentMessage],
    path: impl Fn(&str) -> String,
    code: ErrorCode,
) {
    let before = state(shop).await;
    for SentMessage { kind: what, path: was, body, .. } in messages {
        let (status, answer) = shop.send("POST", &path(was), body.clone()).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(status.is_client_error(), "{what} was accepted: {status} {text}");
        let refused: Rejection = serde_json::from_slice(&answer).unwrap();
        assert_eq!(refused.code, code, "{what}: {refused}");
    }
    assert!(state(shop).await == before, "a rejected message changed the state");
}

/// Checks the response to a message that is replayed in a later round: a commit is too late, and
/// every other message is idempotent and has the same response as before.
fn assert_replay_response(message: &SentMessage, status: StatusCode, answer: &[u8]) {
    let text = String::from_utf8_lossy(answer);
    if message.kind != "a commit" {
        assert_eq!(
            (status, answer),
            (message.status, &*message.answer),
            "{}: {text}",
            message.kind
        );
        return;
    }
    let refused: Rejection = serde_json::from_slice(answer).unwrap();
    assert_eq!(refused.code, ErrorCode::WrongRound, "{}: {refused}", message.kind);
}

/// The messages without registrations, whose scope is the whole market.
fn without_registrations(messages: &[SentMessage]) -> Vec<SentMessage> {
    messages.iter().filter(|message| message.kind != "a registration").cloned().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_round_have_no_effect_in_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let RecordedRound { shop, messages } = first_round(dir.path()).await;
    shop.wait_for_phase(TaskPhase::Committing).await;
    let round = shop.view().await.round;
    assert_eq!(round, RoundNumber(2));
    let before = state(&shop).await;
    for message in &messages {
        let (status, answer) = shop.send("POST", &message.path, message.body.clone()).await;
        assert_replay_response(message, status, &answer);
    }
    assert!(state(&shop).await == before, "a replayed message changed the state");
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_task_are_rejected_in_another_task() {
    let dir = tempfile::tempdir().unwrap();
    let RecordedRound { shop, messages } = first_round(dir.path()).await;
    let other = TaskSpec { salt: 77, ..digits_spec() };
    let (id, known) = (other.id(), shop.id);
    shop.ledger.open(&other);
    let _: TaskView = shop.post("tasks", &other).await.unwrap();
    let rows = format!("tasks/{id}/holdout");
    let (status, _) = shop.send("PUT", &rows, holdout()).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let elsewhere = |path: &str| path.replace(&known.to_string(), &id.to_string());
    let scoped: Vec<SentMessage> = messages
        .iter()
        .filter(|message| message.path.contains(&known.to_string()))
        .cloned()
        .collect();
    assert_eq!(scoped.len(), 12, "enrolments, commits and updates");
    assert_rejected_out_of_scope(&shop, &scoped, elsewhere, ErrorCode::WrongTask).await;
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_market_are_rejected_on_another_chain_and_in_another_deployment() {
    let dir = tempfile::tempdir().unwrap();
    let RecordedRound { shop: first, messages } = first_round(dir.path()).await;
    let known = first.id;
    first.stop().await;
    let chain = MarketId { chain: ChainId(1), ..market() };
    let deployment = MarketId { genesis: Digest([8; 32]), ..market() };
    for (name, market) in [("another chain", chain), ("another deployment", deployment)] {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = digits_spec();
        spec.market = market;
        let shop = TestCoordinator::open(dir.path(), spec);
        // First without any registration; then with the same participants and the task.
        let id = shop.id;
        let path = |path: &str| path.replace(&known.to_string(), &id.to_string());
        assert_rejected_out_of_scope(&shop, &messages, path, ErrorCode::WrongMarket).await;
        for (i, role) in (1..=4).map(|i| (i, Role::Participant)).chain([(PROVIDER, Role::Provider)])
        {
            let (wallet, expires) = (SeededWallet::number(i), Timestamp(1_000_000));
            let own = Registration::sign(market, &wallet, &node(i), role, expires).unwrap();
            let () = shop.post("registrations", &own).await.unwrap();
        }
        shop.publish_task().await;
        let rest = without_registrations(&messages);
        assert_rejected_out_of_scope(&shop, &rest, path, ErrorCode::WrongMarket).await;
        assert_rejected_out_of_scope(&shop, &rest, str::to_owned, ErrorCode::WrongMarket).await;
        println!("{name}: {} messages rejected", messages.len());
        shop.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_concurrent_replays_after_a_restart_have_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let RecordedRound { shop, messages } = first_round(dir.path()).await;
    shop.wait_for_phase(TaskPhase::Committing).await;
    let (ledger, spec) = (shop.ledger.clone(), shop.spec.clone());
    shop.stop().await;
    let shop = TestCoordinator::with(dir.path(), spec, ledger, work_valuer(), |config| {
        config.rate.wallet_burst = 1_000_000;
    });
    let before = state(&shop).await;
    let posts = shop.ledger.state.lock().unwrap().posts;
    for message in messages {
        let mut all = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (router, message) = (shop.router.clone(), message.clone());
            all.spawn(async move {
                let (status, answer) =
                    send_to(router, "POST", &message.path, message.body.clone()).await;
                assert_replay_response(&message, status, &answer);
            });
        }
        while let Some(joined) = all.join_next().await {
            joined.unwrap();
        }
    }
    assert!(state(&shop).await == before, "a replayed message changed the state");
    assert_eq!(shop.ledger.state.lock().unwrap().posts, posts, "no round is settled twice");
    shop.stop().await;
}

/// All signed messages for a task that is collecting commits, valid except for their market.
async fn messages_for(shop: &TestCoordinator, market: MarketId) -> Vec<SentMessage> {
    let (task, expires) = (shop.id, Timestamp(1_000_000));
    let (header, bytes) = shop.update(1).await;
    let scope = RoundScope { market, ..header.scope };
    let header = UpdateHeader { scope, ..header };
    let (offer, commitment) = (header.offer, header.commitment());
    let (sender, provider) = (address(1), address(PROVIDER));
    let participant = Role::Participant;
    let registered =
        Registration::sign(market, &SeededWallet::number(1), &node(1), participant, expires);
    let order = Digest([4; 32]);
    let result = no_result();
    let digest = header.update;
    let asked = BlobRequest { market, task, digest, sender: provider, expires };
    let update = upload_body(&node(1).sign(header), &bytes);
    let (by, of) = (node(1), node(PROVIDER));
    let bodies = [
        ("a registration", "registrations".to_owned(), json(&registered.unwrap())),
        (
            "an enrolment",
            format!("tasks/{task}/enrol"),
            json(&by.sign(EnrolRequest::without_invitation(market, task, sender, expires))),
        ),
        (
            "a commit",
            format!("tasks/{task}/commits"),
            json(&by.sign(Commit { scope, sender, offer, commitment })),
        ),
        ("an update", format!("tasks/{task}/updates"), update),
        (
            "a query for work",
            "work/next".to_owned(),
            json(&of.sign(WorkRequest { market, task, provider, expires })),
        ),
        ("a request for a blob", "work/blob".to_owned(), json(&of.sign(asked))),
        (
            "a work record",
            "work".to_owned(),
            json(&of.sign(WorkRecord { market, order, provider, result })),
        ),
    ];
    let (status, answer) = (StatusCode::OK, Vec::new());
    let message =
        |(what, path, body)| SentMessage { kind: what, path, body, status, answer: answer.clone() };
    bodies.into_iter().map(message).collect()
}

/// An empty work result.
fn no_result() -> WorkResult {
    let valuation = Valuation {
        loss_before_nano: 0,
        loss_after_nano: 0,
        total_nano: 0,
        gap_nano: 0,
        model_loss_nano: 0,
        stages: Vec::new(),
        scores: Vec::new(),
        units: 0,
        evidence: ValuationEvidence::default(),
    };
    WorkResult {
        valuation,
        baseline: None,
        metrics: ModelMetrics::default(),
        model: Digest([1; 32]),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_valid_except_for_its_market_is_rejected_with_wrong_market() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    shop.publish().await;
    for i in 1..=4 {
        shop.enrol(i).await.unwrap();
    }
    shop.wait_for_phase(TaskPhase::Committing).await;
    let ours = market();
    for foreign in [
        MarketId { chain: ChainId(1), ..ours },
        MarketId { genesis: Digest([8; 32]), ..ours },
        MarketId { chain: ChainId(1), genesis: Digest([8; 32]) },
    ] {
        let messages = messages_for(&shop, foreign).await;
        assert_rejected_out_of_scope(&shop, &messages, str::to_owned, ErrorCode::WrongMarket).await;
    }
    // The market was the reason: for this market, some messages are accepted, and the others are
    // rejected for another reason.
    for message in messages_for(&shop, ours).await {
        let (status, answer) = shop.send("POST", &message.path, message.body).await;
        let code = serde_json::from_slice::<Rejection>(&answer).map(|refused| refused.code).ok();
        let right = match message.kind {
            "an update" => Some(ErrorCode::TooEarly),
            "a request for a blob" => Some(ErrorCode::NotYetPublic),
            "a work record" => Some(ErrorCode::WorkOrderClosed),
            _ => None,
        };
        assert!(
            status.is_success() == right.is_none() && code == right,
            "{}: {code:?}",
            message.kind
        );
    }
    shop.stop().await;
}
