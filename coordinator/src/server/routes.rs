//! The list of all routes: method, path, handler, request, responses and error codes. The router
//! and the OpenAPI document are both generated from this list, so they always agree.

use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, head, post, put};
use axum::{Router, middleware};
use florin_compute::{
    ComputeJob, LeaseRecord, ListingPolicy, ListingRecord, ListingRequest, ListingView,
    OrderChanges, OrderRequest, OrderView, SignedLeaseAction, SignedListingAction,
};
use florin_ledger::rpc;
use florin_protocol::ErrorCode::{self, *};
use florin_protocol::{
    BlobRequest, Candidates, ClaimProof, CloseRequest, Commit, EnrolRequest, MarketInfo, Offer,
    Registration, Report, ReportSummary, TaskProgress, TaskSpec, TaskSummary, TaskView,
    UpdateHeader, UploadProgress, UploadReceipt, WorkAcceptance, WorkOrder, WorkRecord,
    WorkRequest,
};
use serde_json::Value;

use super::extract::{LARGE_BYTES_MAX, SMALL_BYTES_MAX, require_content_type};
use super::openapi_document::document;
use super::route::{JSON, Parameter, RequestBody, Route, SIGNED, SuccessResponse};
use super::{
    App, blobs, events, listings, market, observe, orders, report_list, tasks, upload, work,
};

/// Rejection codes of every route that stores what it receives.
const STORED: [ErrorCode; 5] =
    [UnknownTask, UpdateWrongSchema, UpdateNotFinite, LimitReached, StorageFull];
/// Rejection codes of an update, by its round and by its sender.
const UPDATE: [ErrorCode; 12] = [
    WrongTask,
    WrongRound,
    WrongBaseModel,
    TaskClosed,
    DeadlinePassed,
    TooEarly,
    NotEnrolled,
    NotSelected,
    NotCommitted,
    CommitMismatch,
    ConflictingMessage,
    InvalidRowCount,
];
/// All routes.
pub(super) fn all() -> Vec<Route> {
    [
        probe_routes(),
        market_routes(),
        task_routes(),
        round_routes(),
        upload_routes(),
        blob_routes(),
        work_routes(),
        order_routes(),
        listing_routes(),
        order_byte_routes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The router of this list. [`super::router`] adds the fallbacks for other paths and methods.
pub(super) fn router(app: &App) -> Router<App> {
    all().into_iter().fold(Router::new(), |router, route| {
        let handler = match route.request_body.media_type() {
            None => route.handler,
            Some(media) => {
                let state = (app.clone(), media);
                route
                    .handler
                    .route_layer(middleware::from_fn_with_state(state, require_content_type))
            }
        };
        router.route(route.path, handler)
    })
}

/// The OpenAPI document of this list.
#[must_use]
pub fn openapi() -> Value {
    document(&all())
}

/// Serves the document.
pub(crate) async fn serve_document() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| openapi().to_string());
    ([(header::CONTENT_TYPE, JSON)], text.as_str()).into_response()
}

fn probe_routes() -> Vec<Route> {
    vec![
        Route::get("/healthz", get(observe::healthz), "Liveness: whether the process responds.")
            .with_response(SuccessResponse::text("alive")),
        Route::get(
            "/readyz",
            get(observe::readyz),
            "Readiness: whether engine and ledger respond.",
        )
        .with_response(SuccessResponse::text("ready"))
        .with_response(SuccessResponse::unready()),
        Route::get("/openapi.json", get(serve_document), "This document.")
            .with_response(SuccessResponse::anything("OpenAPI 3.1")),
        Route::get("/v1/health", get(market::health), "Liveness: whether the process responds.")
            .with_response(SuccessResponse::text("alive")),
    ]
}

fn market_routes() -> Vec<Route> {
    vec![
        Route::get("/v1/market", get(market::info), "The market, its coordinator and its ledger.")
            .with_response(SuccessResponse::json::<MarketInfo>()),
        Route::get(
            "/v1/events",
            get(events::stream),
            "Server-sent events: the progress of all tasks, then of those that change.",
        )
        .with_parameters(&[Parameter::WAIT_MS])
        .with_response(SuccessResponse::events::<TaskProgress>())
        .with_rejections(&[LimitReached]),
        Route::post(
            "/v1/registrations",
            post(market::register),
            "Binds a node key to a wallet in one role. Both sign. The wallet needs FLN or a stake.",
        )
        .with_body(RequestBody::json::<Registration>(SMALL_BYTES_MAX))
        .with_response(SuccessResponse::nothing("registered, now or earlier"))
        .with_rejections(&[
            InvalidSignature,
            WeakKey,
            WrongMarket,
            DeadlinePassed,
            NotFunded,
            ConflictingMessage,
        ])
        .with_rejections(&[
            LimitReached,
            LedgerRejected,
            StorageFull,
            InvalidExpiry,
            WrongRole,
        ]),
        Route::get(
            "/v1/registrations/{address}",
            get(market::registration),
            "A wallet's registration in a role, or in any role.",
        )
        .with_parameters(&[Parameter::ROLE])
        .with_response(SuccessResponse::json::<Registration>())
        .with_rejections(&[NotRegistered]),
        Route::post(
            "/v1/ledger",
            post(market::ledger),
            "A query or signed transaction for the embedded chain. A ledger refusal is a 200.",
        )
        .with_body(RequestBody::json::<rpc::LedgerRequest>(LARGE_BYTES_MAX))
        .with_response(SuccessResponse::json::<rpc::LedgerResponse>())
        .with_rejections(&[NotFound]),
    ]
}

fn task_routes() -> Vec<Route> {
    vec![
        Route::post("/v1/tasks", post(tasks::publish), "Publishes a task whose escrow is open.")
            .with_body(RequestBody::json::<TaskSpec>(LARGE_BYTES_MAX))
            .with_response(SuccessResponse::json::<TaskView>())
            .with_rejections(&[
                InvalidTask,
                ArbiterNotAccepted,
                TrainerNotAccepted,
                NotFunded,
                TaskClosed,
                LimitReached,
                LedgerRejected,
                StorageFull,
            ])
            .with_rejections(&[WrongMarket, DeadlinePassed]),
        Route::get("/v1/tasks", get(tasks::list), "Every task ever published at this coordinator.")
            .with_response(SuccessResponse::list::<TaskSummary>()),
        Route::get(
            "/v1/tasks/{id}",
            get(tasks::view),
            "A task's current view, or the next one after the sequence `after` (long poll).",
        )
        .with_parameters(&[Parameter::AFTER, Parameter::WAIT_MS])
        .with_response(SuccessResponse::json::<TaskView>())
        .with_rejections(&[UnknownTask]),
        Route::post("/v1/tasks/{id}/enrol", post(tasks::enrol), "Enrols a participant in a task.")
            .with_body(RequestBody::signed::<EnrolRequest>(SMALL_BYTES_MAX))
            .with_response(SuccessResponse::nothing("enrolled, now or earlier"))
            .with_rejections(&[UnknownTask, WrongTask, TaskClosed, DeadlinePassed, BondTooSmall])
            .with_rejections(&[NotAdmitted, InvalidInvitation, InvitationUsed])
            .with_rejections(&[ConflictingMessage, TaskFull, LedgerRejected, StorageFull]),
        Route::post("/v1/tasks/{id}/commits", post(tasks::commit), "Commits to one update.")
            .with_body(RequestBody::signed::<Commit>(SMALL_BYTES_MAX))
            .with_response(SuccessResponse::nothing("accepted, now or earlier"))
            .with_rejections(&[
                UnknownTask,
                WrongTask,
                WrongRound,
                TaskClosed,
                DeadlinePassed,
                TooEarly,
            ])
            .with_rejections(&[
                NotEnrolled,
                NotSelected,
                BondTooSmall,
                ConflictingMessage,
                WrongBaseModel,
            ])
            .with_rejections(&[LimitReached, LedgerRejected, StorageFull]),
        Route::post("/v1/tasks/{id}/close", post(tasks::close), "Closes a task, for its buyer.")
            .with_body(RequestBody::json::<CloseRequest>(SMALL_BYTES_MAX))
            .with_response(SuccessResponse::nothing("the task ends after the running round"))
            .with_rejections(&[UnknownTask, WrongTask, InvalidSignature, WrongMarket, StorageFull]),
        Route::get(
            "/v1/tasks/{id}/proof/{address}",
            get(tasks::proof),
            "An account's cumulative totals after the last final round, with their Merkle proof.",
        )
        .with_response(SuccessResponse::json::<ClaimProof>())
        .with_rejections(&[UnknownTask, NotYetPublic]),
    ]
}

fn round_routes() -> Vec<Route> {
    // A finished round may be archived in a blob, and the blob may be in the bucket.
    let archive_codes = [UnknownTask, NotYetPublic, NotFound, StorageFull, StorageUnavailable];
    let past = |route: Route| route.with_rejections(&archive_codes);
    vec![
        past(Route::get(
            "/v1/tasks/{id}/rounds",
            get(report_list::list),
            "The reports of a task in short, at most 1,000 from the round `from` on, of which at most 100 are read from the archive. Not signed.",
        ))
        .with_parameters(&[Parameter::FROM])
        .with_response(SuccessResponse::list::<ReportSummary>()),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/holdout",
            get(blobs::get_disclosed_rows),
            "The round's disclosed holdout rows with their proofs: borsh, see docs/protocol.md.",
        ))
        .with_response(SuccessResponse::bytes("the disclosed rows")),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/report",
            get(tasks::report),
            "The round's report: everything needed to recompute its payouts.",
        ))
        .with_response(SuccessResponse::signed::<Report>()),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/offer",
            get(tasks::offer),
            "The round's offer.",
        ))
        .with_response(SuccessResponse::signed::<Offer>()),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/candidates",
            get(tasks::candidates),
            "The enrolled participants from which the round's cohort follows; the offer has their \
             digest.",
        ))
        .with_response(SuccessResponse::json::<Candidates>()),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/headers",
            get(tasks::headers),
            "The signed headers of the round's updates.",
        ))
        .with_response(SuccessResponse::signed_list::<UpdateHeader>()),
        past(Route::get(
            "/v1/tasks/{id}/rounds/{round}/records",
            get(tasks::records),
            "The round's verified work records.",
        ))
        .with_response(SuccessResponse::signed_list::<WorkRecord>()),
    ]
}

/// Adds the rejection codes of a body that can be sent in parts.
fn resumable(route: Route) -> Route {
    route.with_rejections(&[WrongOffset, QuotaExceeded, StorageUnavailable])
}

fn upload_routes() -> Vec<Route> {
    vec![
        resumable(Route::post(
            "/v1/tasks/{id}/updates",
            post(upload::post_update),
            "Uploads an update: u32 length (little-endian), signed header (borsh), safetensors of \
             the parameter delta.",
        ))
        .with_parameters(&[Parameter::OFFSET])
        .with_body(RequestBody::bytes("exactly 4 + header + the header's `bytes`"))
        .with_response(SuccessResponse::json::<UploadReceipt>())
        .with_rejections(&SIGNED)
        .with_rejections(&STORED)
        .with_rejections(&UPDATE)
        .with_rejections(&[UpdateNormTooLarge]),
        Route::post(
            "/v1/tasks/{id}/updates/offset",
            post(upload::get_offset),
            "The offset of an update's upload: where its sender resumes.",
        )
        .with_body(RequestBody::signed::<UpdateHeader>(SMALL_BYTES_MAX))
        .with_response(SuccessResponse::json::<UploadProgress>())
        .with_rejections(&STORED)
        .with_rejections(&UPDATE)
        .with_rejections(&[UpdateNormTooLarge, StorageUnavailable]),
    ]
}

fn blob_routes() -> Vec<Route> {
    vec![
        resumable(Route::put(
            "/v1/tasks/{id}/holdout",
            put(blobs::put_holdout),
            "Uploads all rows of a task's holdout in canonical form, which must match its root.",
        ))
        .with_parameters(&[Parameter::OFFSET, Parameter::TOKEN])
        .with_body(RequestBody::bytes(
            "32 + rows x 4 x (width + 1) bytes, with the task's rows and width",
        ))
        .with_response(SuccessResponse::nothing("checked and stored"))
        .with_response(SuccessResponse::text("stored before; the body was not checked"))
        .with_rejections(&STORED)
        .with_rejections(&[InvalidTask, NotFound, TaskClosed]),
        Route::get("/v1/blobs/{digest}", get(blobs::get_blob), "A public blob.")
            .with_response(SuccessResponse::bytes("bytes with this digest"))
            .with_rejections(&[NotFound, NotYetPublic, StorageFull, StorageUnavailable]),
        Route::head(
            "/v1/tasks/{id}/holdout",
            head(blobs::head_holdout),
            "The offset of a holdout's upload under this token.",
        )
        .with_parameters(&[Parameter::TOKEN])
        .with_response(SuccessResponse::nothing("the header `upload-offset` has the offset"))
        .with_rejections(&[UnknownTask, InvalidTask, NotFound, TaskClosed]),
        Route::head(
            "/v1/blobs/{digest}",
            head(blobs::head_model),
            "The offset of a model's upload under this token.",
        )
        .with_parameters(&[Parameter::TOKEN])
        .with_response(SuccessResponse::nothing("the header `upload-offset` has the offset"))
        .with_rejections(&[NotFound]),
        resumable(Route::put(
            "/v1/blobs/{digest}",
            put(blobs::put_model),
            "Uploads a model that a task waits for.",
        ))
        .with_parameters(&[Parameter::OFFSET, Parameter::TOKEN])
        .with_body(RequestBody::bytes("safetensors, exactly as long as the task's model"))
        .with_response(SuccessResponse::nothing("checked and stored"))
        .with_response(SuccessResponse::text("stored before; the body was not checked"))
        .with_rejections(&STORED)
        .with_rejections(&[NotFound, TaskClosed]),
    ]
}

/// Rejection codes of a work record.
const RECORD: [ErrorCode; 5] =
    [WorkOrderClosed, WorkResultMismatch, ConflictingMessage, TooEarly, TaskClosed];

fn work_routes() -> Vec<Route> {
    let pledged = [UnknownTask, StakeTooSmall, DeadlinePassed, LedgerRejected, StorageFull];
    vec![
        Route::post(
            "/v1/work/next",
            post(work::next_order),
            "A provider's next work order (long poll).",
        )
        .with_parameters(&[Parameter::WAIT_MS])
        .with_body(RequestBody::signed::<WorkRequest>(SMALL_BYTES_MAX))
        .with_response(SuccessResponse::signed::<WorkOrder>())
        .with_response(SuccessResponse::nothing("there is no order"))
        .with_rejections(&pledged)
        .with_rejections(&[TaskFull]),
        Route::post("/v1/work/blob", post(work::blob), "A blob of an open work order.")
            .with_body(RequestBody::signed::<BlobRequest>(SMALL_BYTES_MAX))
            .with_response(SuccessResponse::bytes("bytes with this digest"))
            .with_rejections(&pledged)
            .with_rejections(&[NotFound, NotYetPublic, StorageUnavailable]),
        Route::post(
            "/v1/work",
            post(work::record),
            "Submits a work record and awaits its verification.",
        )
        .with_body(RequestBody::signed::<WorkRecord>(LARGE_BYTES_MAX))
        .with_response(SuccessResponse::json::<WorkAcceptance>())
        .with_rejections(&pledged)
        .with_rejections(&RECORD)
        .with_rejections(&[StorageUnavailable]),
        Route::post(
            "/v1/work/transcripts",
            post(work::record_with_transcript),
            "Submits a work record with the transcript of its valuation, and awaits its verification: u32 length \
             (little-endian), signed record (borsh), transcript.",
        )
        .with_body(RequestBody::bytes("at most 4 + record + 64 MiB"))
        .with_response(SuccessResponse::json::<WorkAcceptance>())
        .with_rejections(&pledged)
        .with_rejections(&RECORD)
        .with_rejections(&SIGNED)
        .with_rejections(&[StorageUnavailable, LimitReached]),
    ]
}

fn order_routes() -> Vec<Route> {
    vec![
        Route::post(
            "/v1/orders",
            post(orders::open),
            "Opens an order for compute whose escrow is on the ledger.",
        )
        .with_body(RequestBody::json::<OrderRequest>(LARGE_BYTES_MAX))
        .with_response(SuccessResponse::json::<OrderView>())
        .with_rejections(&[InvalidOrder, WrongMarket, NotFunded, TaskClosed])
        .with_rejections(&[ArbiterNotAccepted, LimitReached, StorageFull]),
        Route::get("/v1/orders", get(orders::list), "The remembered orders, the newest first.")
            .with_response(SuccessResponse::list::<OrderView>()),
        Route::get(
            "/v1/orders/changes",
            get(orders::changes),
            "The orders that changed behind the change `after` of the run `run`, or all.",
        )
        .with_parameters(&[Parameter::RUN, Parameter::CHANGES_AFTER])
        .with_response(SuccessResponse::json::<OrderChanges>()),
        Route::get("/v1/orders/{id}", get(orders::view), "An order.")
            .with_response(SuccessResponse::json::<OrderView>()),
        Route::get("/v1/orders/{id}/job", get(orders::job), "The job of an order.")
            .with_response(SuccessResponse::json::<ComputeJob>()),
        Route::get(
            "/v1/orders/{id}/records",
            get(orders::records),
            "The recorded actions behind the first `after`, or the next one (long poll).",
        )
        .with_parameters(&[Parameter::RECORDS_AFTER, Parameter::WAIT_MS])
        .with_response(SuccessResponse::list::<LeaseRecord>()),
        Route::post(
            "/v1/orders/{id}/actions",
            post(orders::act),
            "An action of an account on a lease, signed by its wallet.",
        )
        .with_body(RequestBody::json::<SignedLeaseAction>(SMALL_BYTES_MAX))
        .with_response(SuccessResponse::nothing("recorded, now or earlier"))
        .with_rejections(&[InvalidSignature, RateLimited, LeaseRefused, TooEarly])
        .with_rejections(&[BondTooSmall, NotListed, StorageFull]),
    ]
}

fn listing_routes() -> Vec<Route> {
    vec![
        Route::post(
            "/v1/listings",
            post(listings::open),
            "Opens a listing of devices whose fees and stake are on the ledger, and begins its first probe.",
        )
        .with_body(RequestBody::json::<ListingRequest>(SMALL_BYTES_MAX))
        .with_response(SuccessResponse::json::<ListingView>())
        .with_rejections(&[InvalidOrder, WrongMarket, NotFunded, TaskClosed, BondTooSmall])
        .with_rejections(&[ArbiterNotAccepted, LimitReached, LeaseRefused, StorageFull]),
        Route::get("/v1/listings", get(listings::list), "The remembered listings, the newest first.")
            .with_response(SuccessResponse::list::<ListingView>()),
        Route::get(
            "/v1/listings/policy",
            get(listings::policy),
            "The operator's requirements of listings.",
        )
        .with_response(SuccessResponse::json::<ListingPolicy>()),
        Route::get(
            "/v1/listings/{id}",
            get(listings::view),
            "A listing, with `after` once it has more records (long poll).",
        )
        .with_parameters(&[Parameter::RECORDS_AFTER, Parameter::WAIT_MS])
        .with_response(SuccessResponse::json::<ListingView>()),
        Route::get(
            "/v1/listings/{id}/records",
            get(listings::records),
            "The records of a listing behind the first `after`.",
        )
        .with_parameters(&[Parameter::RECORDS_AFTER])
        .with_response(SuccessResponse::list::<ListingRecord>()),
        Route::post(
            "/v1/listings/{id}/actions",
            post(listings::act),
            "A message of a provider on its listing, signed by its wallet: the root of a computed probe, or the \
             end of the listing.",
        )
        .with_body(RequestBody::json::<SignedListingAction>(SMALL_BYTES_MAX))
        .with_response(SuccessResponse::json::<ListingView>())
        .with_rejections(&[InvalidSignature, RateLimited, LeaseRefused, StorageFull]),
        Route::put(
            "/v1/listings/{id}/links",
            put(listings::show),
            "The drawn links of a computed probe, from its provider.",
        )
        .with_parameters(&[Parameter::LINKS_SIGNATURE])
        .with_body(RequestBody::bytes("borsh of ShownLinks"))
        .with_response(SuccessResponse::json::<ListingView>())
        .with_rejections(&[InvalidSignature, RateLimited, LeaseRefused, LimitReached, StorageFull]),
    ]
}

fn order_byte_routes() -> Vec<Route> {
    vec![
        Route::put(
            "/v1/orders/{id}/blobs/{digest}",
            put(orders::put_blob),
            "Uploads a blob of an order's job.",
        )
        .with_body(RequestBody::bytes("exactly as many as the job names"))
        .with_response(SuccessResponse::nothing("stored, now or earlier"))
        .with_rejections(&[InvalidOrder, NotFunded, TaskClosed, LeaseRefused, LimitReached])
        .with_rejections(&[StorageFull, StorageUnavailable]),
        Route::get(
            "/v1/orders/{id}/blobs/{digest}",
            get(orders::get_blob),
            "A blob of an order's job. Rows that are not public need a signed request.",
        )
        .with_parameters(&Parameter::READER)
        .with_response(SuccessResponse::bytes("bytes with this digest"))
        .with_rejections(&[Malformed, InvalidSignature, DeadlinePassed, DataRestricted])
        .with_rejections(&[RateLimited, StorageFull, StorageUnavailable]),
        Route::get(
            "/v1/orders/{id}/disputed-rows",
            get(orders::disputed_rows),
            "The rows of the disputed step of an order on private rows, for its referee.",
        )
        .with_parameters(&Parameter::READER)
        .with_response(SuccessResponse::bytes("a data set in canonical form"))
        .with_rejections(&[Malformed, InvalidSignature, DeadlinePassed, DataRestricted])
        .with_rejections(&[RateLimited, StorageFull, StorageUnavailable]),
        Route::put(
            "/v1/orders/{id}/states/{digest}",
            put(orders::put_state),
            "Uploads a state of a lease, for its provider.",
        )
        .with_parameters(&[Parameter::STATE_ACCOUNT, Parameter::STATE_SIGNATURE])
        .with_body(RequestBody::bytes("safetensors of the state, in its canonical form"))
        .with_response(SuccessResponse::nothing("checked and stored, now or earlier"))
        .with_rejections(&[InvalidSignature, RateLimited, LeaseRefused, TooEarly])
        .with_rejections(&[InvalidOrder, LimitReached, StorageFull, StorageUnavailable]),
        Route::put(
            "/v1/orders/{id}/checkpoints/{digest}",
            put(orders::put_checkpoint),
            "Leaves the end of the next segment of a lease, or its first state, for its provider. The coordinator serves \
             and opens it if the provider does not come back.",
        )
        .with_parameters(&Parameter::CHECKPOINT)
        .with_body(RequestBody::bytes("safetensors of the state, in its canonical form"))
        .with_response(SuccessResponse::nothing("checked and stored, now or earlier"))
        .with_rejections(&[InvalidSignature, RateLimited, LeaseRefused, TooEarly])
        .with_rejections(&[InvalidOrder, LimitReached, StorageFull, StorageUnavailable]),
        Route::get(
            "/v1/orders/{id}/states/{digest}",
            get(orders::get_state),
            "A state of a lease: the start of a drawn segment, or the result. An order that is not public needs a \
             signed request.",
        )
        .with_parameters(&Parameter::READER)
        .with_response(SuccessResponse::bytes("safetensors of the state with this digest"))
        .with_rejections(&[Malformed, InvalidSignature, DeadlinePassed, DataRestricted])
        .with_rejections(&[RateLimited, StorageFull, StorageUnavailable]),
    ]
}
