//! The list of all routes: method, path, handler, request, responses and error codes. The router
//! and the OpenAPI document are both generated from this list, so they always agree.

use axum::routing::{MethodRouter, get, head, post, put};
use axum::{Router, middleware};
use florin_ledger::rpc;
use florin_protocol::ErrorCode::{self, *};
use florin_protocol::{
    BlobRequest, ClaimProof, CloseRequest, Commit, EnrolRequest, MarketInfo, Offer, Registration,
    Report, TaskSpec, TaskSummary, TaskView, UpdateHeader, UpdateReceipt, UploadProgress,
    WorkAcceptance, WorkOrder, WorkRecord, WorkRequest,
};

use super::document::{Answer, Body, Query};
use super::extract::{LARGE_BYTES_MAX, SMALL_BYTES_MAX, only};
use super::{App, blobs, document, market, observe, tasks, upload, work};

/// The method of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verb {
    Get,
    Post,
    Put,
    Head,
}

/// One route.
pub(super) struct Route {
    pub(super) verb: Verb,
    pub(super) path: &'static str,
    handler: MethodRouter<App>,
    /// One sentence for the document.
    pub(super) what: &'static str,
    pub(super) query: &'static [Query],
    pub(super) takes: Body,
    pub(super) answers: Vec<Answer>,
    /// The route's rejection codes, beyond those of every route.
    pub(super) refuses: Vec<ErrorCode>,
}

/// Rejection codes of every route that takes a signed message.
const SIGNED: [ErrorCode; 5] = [BadSignature, WeakKey, WrongMarket, NotRegistered, RateLimited];
/// Rejection codes of every route that takes a body.
const BODY: [ErrorCode; 4] = [Malformed, Truncated, TooLarge, WrongContentType];

impl Route {
    fn of(verb: Verb, path: &'static str, handler: MethodRouter<App>, what: &'static str) -> Self {
        // A path parameter can be malformed, and an empty one makes another path, which is not
        // found.
        let refuses = if path.contains('{') { vec![Malformed, NotFound] } else { Vec::new() };
        let (takes, answers) = (Body::Nothing, Vec::new());
        Self { verb, path, handler, what, query: &[], takes, answers, refuses }
    }

    fn get(path: &'static str, handler: MethodRouter<App>, what: &'static str) -> Self {
        Self::of(Verb::Get, path, handler, what)
    }

    fn post(path: &'static str, handler: MethodRouter<App>, what: &'static str) -> Self {
        Self::of(Verb::Post, path, handler, what)
    }

    fn put(path: &'static str, handler: MethodRouter<App>, what: &'static str) -> Self {
        Self::of(Verb::Put, path, handler, what)
    }

    fn head(path: &'static str, handler: MethodRouter<App>, what: &'static str) -> Self {
        Self::of(Verb::Head, path, handler, what)
    }

    fn asks(self, query: &'static [Query]) -> Self {
        Self { query, ..self }.refuses(&[Malformed])
    }

    fn takes(self, takes: Body) -> Self {
        let refuses: &[ErrorCode] = match takes {
            Body::Signed(..) => &SIGNED,
            _ => &[],
        };
        Self { takes, ..self }.refuses(&BODY).refuses(refuses)
    }

    fn answers(mut self, answer: Answer) -> Self {
        self.answers.push(answer);
        self
    }

    fn refuses(mut self, codes: &[ErrorCode]) -> Self {
        self.refuses.extend(codes);
        self
    }
}

/// All routes.
pub(super) fn all() -> Vec<Route> {
    [observed(), of_the_market(), of_tasks(), of_rounds(), of_blobs(), of_work()]
        .into_iter()
        .flatten()
        .collect()
}

/// The router of this list. [`super::router`] adds the fallbacks for other paths and methods.
pub(super) fn router(app: &App) -> Router<App> {
    all().into_iter().fold(Router::new(), |router, route| {
        let handler = match route.takes.media() {
            None => route.handler,
            Some(media) => {
                let state = (app.clone(), media);
                route.handler.route_layer(middleware::from_fn_with_state(state, only))
            }
        };
        router.route(route.path, handler)
    })
}

fn observed() -> Vec<Route> {
    vec![
        Route::get("/healthz", get(observe::healthz), "Liveness: whether the process responds.")
            .answers(Answer::text("alive")),
        Route::get(
            "/readyz",
            get(observe::readyz),
            "Readiness: whether engine and ledger respond.",
        )
        .answers(Answer::text("ready"))
        .answers(Answer::unready()),
        Route::get("/openapi.json", get(document::serve), "This document.")
            .answers(Answer::anything("OpenAPI 3.1")),
        Route::get("/v1/health", get(market::health), "Liveness: whether the process responds.")
            .answers(Answer::text("alive")),
    ]
}

fn of_the_market() -> Vec<Route> {
    vec![
        Route::get("/v1/market", get(market::info), "The market, its coordinator and its ledger.")
            .answers(Answer::json::<MarketInfo>()),
        Route::post(
            "/v1/registrations",
            post(market::register),
            "Binds a node key to a wallet in one role. Both sign. The wallet needs FLN or a stake.",
        )
        .takes(Body::json::<Registration>(SMALL_BYTES_MAX))
        .answers(Answer::nothing("registered, now or earlier"))
        .refuses(&[
            BadSignature,
            WeakKey,
            WrongMarket,
            DeadlinePassed,
            NotFunded,
            ConflictingMessage,
        ])
        .refuses(&[LimitReached, LedgerRejected, StorageFull]),
        Route::get(
            "/v1/registrations/{address}",
            get(market::registration),
            "A wallet's registration in a role, or in any role.",
        )
        .asks(&[Query::ROLE])
        .answers(Answer::json::<Registration>())
        .refuses(&[NotRegistered]),
        Route::post(
            "/v1/ledger",
            post(market::ledger),
            "A query or signed transaction for the embedded chain. A ledger refusal is a 200.",
        )
        .takes(Body::json::<rpc::LedgerRequest>(LARGE_BYTES_MAX))
        .answers(Answer::json::<rpc::LedgerResponse>())
        .refuses(&[NotFound]),
    ]
}

fn of_tasks() -> Vec<Route> {
    vec![
        Route::post("/v1/tasks", post(tasks::publish), "Publishes a task whose escrow is open.")
            .takes(Body::json::<TaskSpec>(SMALL_BYTES_MAX))
            .answers(Answer::json::<TaskView>())
            .refuses(&[
                InvalidTask,
                NotFunded,
                TaskClosed,
                LimitReached,
                LedgerRejected,
                StorageFull,
            ])
            .refuses(&[WrongMarket, DeadlinePassed]),
        Route::get("/v1/tasks", get(tasks::list), "Every task ever published at this coordinator.")
            .answers(Answer::list::<TaskSummary>()),
        Route::get(
            "/v1/tasks/{id}",
            get(tasks::show),
            "A task's current view, or the next one after the sequence `after` (long poll).",
        )
        .asks(&[Query::AFTER, Query::WAIT_MS])
        .answers(Answer::json::<TaskView>())
        .refuses(&[UnknownTask]),
        Route::post("/v1/tasks/{id}/enrol", post(tasks::enrol), "Enrols a participant in a task.")
            .takes(Body::signed::<EnrolRequest>(SMALL_BYTES_MAX))
            .answers(Answer::nothing("enrolled, now or earlier"))
            .refuses(&[UnknownTask, WrongTask, TaskClosed, DeadlinePassed, BondTooSmall])
            .refuses(&[ConflictingMessage, LimitReached, LedgerRejected, StorageFull]),
        Route::post("/v1/tasks/{id}/commits", post(tasks::commit), "Commits to one update.")
            .takes(Body::signed::<Commit>(SMALL_BYTES_MAX))
            .answers(Answer::nothing("accepted, now or earlier"))
            .refuses(&[UnknownTask, WrongTask, WrongRound, TaskClosed, DeadlinePassed, TooEarly])
            .refuses(&[NotEnrolled, NotSelected, BondTooSmall, ConflictingMessage, WrongBaseModel])
            .refuses(&[LimitReached, LedgerRejected, StorageFull]),
        Route::post("/v1/tasks/{id}/close", post(tasks::close), "Closes a task, for its buyer.")
            .takes(Body::json::<CloseRequest>(SMALL_BYTES_MAX))
            .answers(Answer::nothing("the task ends after the running round"))
            .refuses(&[UnknownTask, WrongTask, BadSignature, WrongMarket, StorageFull]),
        Route::get(
            "/v1/tasks/{id}/proof/{address}",
            get(tasks::proof),
            "An account's cumulative totals after the last final round, with their Merkle proof.",
        )
        .answers(Answer::json::<ClaimProof>())
        .refuses(&[UnknownTask, NotYetPublic]),
    ]
}

fn of_rounds() -> Vec<Route> {
    // A finished round may be archived in a blob, and the blob may be in the bucket.
    let kept = [UnknownTask, NotYetPublic, NotFound, StorageFull, StorageUnavailable];
    let past = |route: Route| route.refuses(&kept);
    vec![
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/holdout",
            get(blobs::give_shown),
            "The round's disclosed holdout rows with their proofs: borsh, see docs/protocol.md.",
        ))
        .answers(Answer::bytes("the disclosed rows")),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/report",
            get(tasks::report),
            "The round's report: everything needed to recompute its payouts.",
        ))
        .answers(Answer::signed::<Report>()),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/offer",
            get(tasks::offer),
            "The round's offer.",
        ))
        .answers(Answer::signed::<Offer>()),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/headers",
            get(tasks::headers),
            "The signed headers of the round's updates.",
        ))
        .answers(Answer::signed_list::<UpdateHeader>()),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/records",
            get(tasks::records),
            "The round's verified work records.",
        ))
        .answers(Answer::signed_list::<WorkRecord>()),
    ]
}

fn of_blobs() -> Vec<Route> {
    let fits = [UnknownTask, UpdateWrongSchema, UpdateNotFinite, LimitReached, StorageFull];
    let resumed = |route: Route| route.refuses(&[WrongOffset, QuotaExceeded, StorageUnavailable]);
    vec![
        resumed(Route::post(
            "/v1/tasks/{id}/updates",
            post(upload::take_update),
            "Uploads an update: u32 length (little-endian), signed header (borsh), safetensors of \
             the parameter delta.",
        ))
        .asks(&[Query::OFFSET])
        .takes(Body::bytes("exactly 4 + header + the header's `bytes`"))
        .answers(Answer::signed::<UpdateReceipt>())
        .refuses(&SIGNED)
        .refuses(&fits)
        .refuses(&[WrongTask, WrongRound, WrongBaseModel, TaskClosed, DeadlinePassed, TooEarly])
        .refuses(&[
            NotEnrolled,
            NotSelected,
            NotCommitted,
            CommitMismatch,
            ConflictingMessage,
            InvalidRowCount,
        ])
        .refuses(&[UpdateNormTooLarge]),
        Route::post(
            "/v1/tasks/{id}/updates/offset",
            post(upload::ask_offset),
            "The offset of an update's upload: where its sender resumes.",
        )
        .takes(Body::signed::<UpdateHeader>(SMALL_BYTES_MAX))
        .answers(Answer::json::<UploadProgress>())
        .refuses(&fits)
        .refuses(&[WrongTask, WrongRound, WrongBaseModel, TaskClosed, DeadlinePassed, TooEarly])
        .refuses(&[
            NotEnrolled,
            NotSelected,
            NotCommitted,
            CommitMismatch,
            ConflictingMessage,
            InvalidRowCount,
        ])
        .refuses(&[UpdateNormTooLarge, StorageUnavailable]),
        resumed(Route::put(
            "/v1/tasks/{id}/holdout",
            put(blobs::take_holdout),
            "Uploads all rows of a task's holdout in canonical form, which must match its root.",
        ))
        .asks(&[Query::OFFSET, Query::TOKEN])
        .takes(Body::bytes("32 + rows x 4 x (width + 1) bytes, with the task's rows and width"))
        .answers(Answer::nothing("stored, now or earlier"))
        .refuses(&fits)
        .refuses(&[InvalidTask, NotFound]),
        Route::get("/v1/blobs/{digest}", get(blobs::give_blob), "A public blob.")
            .answers(Answer::bytes("bytes with this digest"))
            .refuses(&[NotFound, NotYetPublic, StorageFull, StorageUnavailable]),
        Route::head(
            "/v1/tasks/{id}/holdout",
            head(blobs::ask_holdout),
            "The offset of a holdout's upload under this token.",
        )
        .asks(&[Query::TOKEN])
        .answers(Answer::nothing("the header `upload-offset` has the offset"))
        .refuses(&[UnknownTask, InvalidTask, NotFound]),
        Route::head(
            "/v1/blobs/{digest}",
            head(blobs::ask_blob),
            "The offset of a model's upload under this token.",
        )
        .asks(&[Query::TOKEN])
        .answers(Answer::nothing("the header `upload-offset` has the offset"))
        .refuses(&[NotFound]),
        resumed(Route::put(
            "/v1/blobs/{digest}",
            put(blobs::take_blob),
            "Uploads a model that a task waits for.",
        ))
        .asks(&[Query::OFFSET, Query::TOKEN])
        .takes(Body::bytes("safetensors, exactly as long as the task's model"))
        .answers(Answer::nothing("stored, now or earlier"))
        .refuses(&fits)
        .refuses(&[NotFound]),
    ]
}

fn of_work() -> Vec<Route> {
    let pledged = [UnknownTask, StakeTooSmall, DeadlinePassed, LedgerRejected, StorageFull];
    vec![
        Route::post("/v1/work/next", post(work::next), "A provider's next work order (long poll).")
            .asks(&[Query::WAIT_MS])
            .takes(Body::signed::<WorkRequest>(SMALL_BYTES_MAX))
            .answers(Answer::signed::<WorkOrder>())
            .answers(Answer::nothing("there is no order"))
            .refuses(&pledged)
            .refuses(&[LimitReached]),
        Route::post("/v1/work/blob", post(work::blob), "A blob of an open work order.")
            .takes(Body::signed::<BlobRequest>(SMALL_BYTES_MAX))
            .answers(Answer::bytes("bytes with this digest"))
            .refuses(&pledged)
            .refuses(&[NotFound, NotYetPublic, StorageUnavailable]),
        Route::post(
            "/v1/work",
            post(work::record),
            "Submits a work record and awaits its verification.",
        )
        .takes(Body::signed::<WorkRecord>(LARGE_BYTES_MAX))
        .answers(Answer::json::<WorkAcceptance>())
        .refuses(&pledged)
        .refuses(&[
            WorkOrderClosed,
            WorkResultMismatch,
            ConflictingMessage,
            LimitReached,
            TooEarly,
            TaskClosed,
        ])
        .refuses(&[StorageUnavailable]),
    ]
}
