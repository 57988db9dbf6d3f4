//! The order file: the training that a renter buys, and the terms of its lease.
//!
//! Its sections `[model]`, `[data]` and `[training]` are those of a task file, and `data_class` states the readers of
//! its rows.

mod defaults;
mod new_order;
mod rented;
mod sections;
mod split;
#[cfg(test)]
mod tests;

use std::path::Path;

use florin_compute::{ComputeJob, ComputeOrder, DataClass, Lease, LeaseError, LeaseOutcome};
use florin_learning::data::canonical_bytes;
use florin_learning::{ModelSpec, tensors};
use florin_protocol::{
    Address, Amount, Blob, Canonical, DataSchema, Digest, MarketId, ModelArchitecture, SpecError,
    blob_digest, format_ms,
};

pub(crate) use new_order::{NewOrder, order_for_graph};
pub(crate) use rented::{RentedRounds, read_rented};

use super::file::{ModelKind, ModelSection};
use super::graph_section::read_cut_graph;
use super::named_rows::{NamedRows, RowFiles};
use super::token_section::TokenizerFile;
use super::{FILE_BYTES_MAX, TaskFileError, check_graph_keys};
use crate::cli::EngineArg;
use crate::failure::Failure;
use crate::small_file::SmallFile;
use sections::{AuditSection, DepositSection, OrderFile, OrderSection, WindowSection};
pub(crate) use split::OrderSplit;

/// The challenge window of a lease, in milliseconds: ten minutes.
const CHALLENGE_MS: u64 = 600_000;

/// A valid order file, with the blobs of its job.
#[derive(Debug)]
pub(crate) struct OrderDraft {
    /// The job.
    pub(crate) job: ComputeJob,
    /// The blobs of the job, each once.
    pub(crate) blobs: Vec<(Digest, Vec<u8>)>,
    /// The digest of the state before the first step.
    pub(crate) start: Digest,
    /// The challenge window of the settlement, in milliseconds.
    pub(crate) challenge_ms: u64,
    /// The accounts that may read the rows.
    pub(crate) data_class: DataClass,
    /// The layers that stay at home, if any do.
    pub(crate) split: Option<OrderSplit>,
    terms: OrderTerms,
    text: String,
}

/// The terms of an order that do not depend on its job.
#[derive(Debug, Clone)]
struct OrderTerms {
    referee: Address,
    nonce: u64,
    order: OrderSection,
    audit: AuditSection,
    deposits: DepositSection,
    windows: WindowSection,
}

/// The market and the account of an order, which its file does not contain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderParties {
    /// The market.
    pub(crate) market: MarketId,
    /// The account that pays.
    pub(crate) renter: Address,
}

/// The class of bits of an order, and its longest step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassAndStep {
    /// The class.
    pub(crate) class: Digest,
    /// The longest step in microseconds.
    pub(crate) step_us_max: u64,
}

/// The segments of a job that an earlier order left, and the state that they start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrderRest {
    /// The earlier order.
    pub(crate) after: Digest,
    /// Segments before.
    pub(crate) first_segment: u32,
    /// Segments that are left.
    pub(crate) segments: u32,
    /// Steps of a segment.
    pub(crate) steps: u32,
    /// The state.
    pub(crate) start: Digest,
}

impl OrderRest {
    /// The segments that a lease left. Those of a provider that lost its stake count as none.
    ///
    /// # Errors
    /// `ORDER_NOT_OVER`, and `ORDER_DELIVERED` if none is left.
    pub(crate) fn after(lease: &Lease) -> Result<Self, Failure> {
        let order = lease.order();
        let id = order.id().short();
        let delivered = match lease.outcome() {
            None => {
                let message = format!("order {id} goes on: wait until it is over");
                return Err(Failure::negative("ORDER_NOT_OVER", message));
            }
            Some(LeaseOutcome::Settled) => {
                let message =
                    format!("order {id} delivered all segments: `florin rent fetch {id}`");
                return Err(Failure::negative("ORDER_DELIVERED", message));
            }
            Some(LeaseOutcome::Defaulted { delivered }) => delivered,
            Some(LeaseOutcome::Unawarded | LeaseOutcome::Slashed { .. }) => 0,
        };
        let result = lease.result().filter(|_| delivered > 0);
        let (delivered, start) = result.map_or((0, order.start), |result| (delivered, result));
        Ok(Self {
            after: order.id(),
            first_segment: order.first_segment.saturating_add(delivered),
            segments: order.segments.saturating_sub(delivered),
            steps: order.steps,
            start,
        })
    }
}

/// Reads an order file, its model and its rows.
///
/// # Errors
/// `INVALID_ORDER` with the line, key, value and the expected value; `DATA_CLASS_UNSUPPORTED`.
pub(crate) fn read(path: &Path, engine: EngineArg) -> anyhow::Result<OrderDraft> {
    let text = read_text(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(from_text(&text, folder, engine).map_err(|refusal| refusal.at(path, &text))?)
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    SmallFile { kind: "an order file", code: "INVALID_ORDER", bytes_max: FILE_BYTES_MAX }.read(path)
}

/// A refusal of an order file, with its code.
#[derive(Debug)]
struct Refused(&'static str, TaskFileError);

impl Refused {
    fn at(self, path: &Path, text: &str) -> Failure {
        let Self(code, problem) = self;
        Failure::input(code, problem.message(path, text))
    }
}

impl<E: Into<TaskFileError>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self("INVALID_ORDER", error.into())
    }
}

fn from_text(text: &str, folder: &Path, engine: EngineArg) -> Result<OrderDraft, Refused> {
    let file: OrderFile = toml::from_str(text).map_err(TaskFileError::from)?;
    let data_class = data_class(&file.data_class)?;
    check_model(&file.model)?;
    let at_home = file.split.as_ref().map(|split| split.at_home.as_slice());
    let (graph, cut) = read_cut_graph(&file.model, Some(folder), at_home)?;
    file.data.check_keys()?;
    let inputs = split::inputs(&graph.declared, cut.as_ref())?;
    let expected = inputs.saturating_add(graph.declared.targets);
    if file.data.width != expected {
        let right = format!("a row of the model has {expected} numbers, its targets included");
        let error = TaskFileError::key("data.width", file.data.width.to_string(), right);
        return Err(error.into());
    }
    let tokens = file.data.tokens.as_ref().map(|tokens| tokens.read(Some(folder)));
    let tokenizer = tokens.transpose()?;
    let rows = read_rows(&file, folder, tokenizer.as_ref())?;
    let rows = match &cut {
        Some(cut) => split::activations(cut, &rows, engine)?,
        None => rows,
    };
    let model = florin_work::model_spec(&ModelArchitecture::Graph(graph.declared.clone()));
    let start = initial(&file.model, folder, &model, graph.initial)?;
    let mut blobs = graph.blobs;
    let mut blob = |bytes: Vec<u8>| {
        let blob = Blob { digest: blob_digest(&bytes), bytes: bytes.len() as u64 };
        blobs.push((blob.digest, bytes));
        blob
    };
    let encoded = tensors::encode(&model, &start).map_err(|error| {
        TaskFileError::key("model.file", format!("{:?}", file.model.file), error.to_string())
    })?;
    let job = ComputeJob {
        graph: graph.declared,
        start: blob(encoded),
        row_count: rows.rows() as u64,
        rows: blob(canonical_bytes(&rows)),
        training: file.training.settings()?,
        virtual_workers: file.order.virtual_workers,
        seed: file.order.seed,
    };
    job.check().map_err(in_file)?;
    let start = Digest(florin_work::initial_state(&job, &start).digest());
    let challenge_ms = file.challenge.map_or(CHALLENGE_MS, |challenge| challenge.0);
    blobs.sort_by_key(|(digest, _)| *digest);
    blobs.dedup_by_key(|(digest, _)| *digest);
    let text = text.to_owned();
    let OrderFile { referee, nonce, order, audit, deposits, windows, .. } = file;
    let terms = OrderTerms { referee, nonce, order, audit, deposits, windows };
    let split = cut.as_ref().map(OrderSplit::new);
    let draft = OrderDraft { job, blobs, start, challenge_ms, data_class, split, terms, text };
    draft.segments()?;
    Ok(draft)
}

/// The data class of an order. It is stated, and never assumed: it decides who reads the rows.
fn data_class(name: &str) -> Result<DataClass, Refused> {
    if let Some(class) = DataClass::from_name(name) {
        return Ok(class);
    }
    let right = "write who may read the rows: \"public\" (all accounts), \"buyer\" (the provider that wins, and \
                 drawn auditors) or \"private\" (the provider that wins; you audit). Rows that no other machine may \
                 have are trained by `florin task`, or with both ends of the model at home by `florin participate --rank-private`";
    let error = TaskFileError::key("data_class", format!("{name:?}"), right);
    Err(Refused("DATA_CLASS_UNSUPPORTED", error))
}

fn check_model(section: &ModelSection) -> Result<(), TaskFileError> {
    if section.kind != ModelKind::Graph {
        let right = "write \"graph\": only a model of torch.export.save is trained in segments that \
                     can be audited";
        let name = format!("{:?}", format!("{:?}", section.kind).to_lowercase());
        return Err(TaskFileError::key("model.kind", name, right));
    }
    let given = [
        ("model.inputs", section.inputs.is_some()),
        ("model.hidden", section.hidden.is_some()),
        ("model.classes", section.classes.is_some()),
        ("model.code", section.code.is_some()),
        ("model.channels", section.channels.is_some()),
        ("model.height", section.height.is_some()),
        ("model.width", section.width.is_some()),
        ("model.filters", section.filters.is_some()),
    ];
    if let Some((key, _)) = given.iter().find(|(_, is_there)| *is_there) {
        let right = "a model of kind \"graph\" has no such key: remove it";
        return Err(TaskFileError::key(key, "…", right));
    }
    check_graph_keys(section, "graph")
}

fn read_rows(
    file: &OrderFile,
    folder: &Path,
    tokenizer: Option<&TokenizerFile>,
) -> Result<florin_learning::Dataset, TaskFileError> {
    let encoding = match tokenizer {
        Some(tokenizer) => Some(tokenizer.row_encoding()),
        None => file.data.complete_encoding()?,
    };
    let (width, classes) = (file.data.width, file.data.classes);
    let mut schema = DataSchema { width, classes, encoding };
    let named = NamedRows {
        section: "rows",
        source: &file.rows.source,
        rows: file.rows.rows.as_deref(),
        data: &file.data,
    };
    named.read(RowFiles { folder, tokenizer, table: None }, &mut schema)
}

/// The initial parameters: those of the model's file, or those of another file.
fn initial(
    section: &ModelSection,
    folder: &Path,
    model: &ModelSpec,
    of_file: Vec<f32>,
) -> Result<Vec<f32>, TaskFileError> {
    let Some(path) = &section.initial else { return Ok(of_file) };
    let wrong = |right: String| TaskFileError::key("model.initial", format!("{path:?}"), right);
    let place = folder.join(path);
    let unread = |error: std::io::Error| wrong(format!("cannot read {}: {error}", place.display()));
    let size = tensors::encoded_len(model) as u64;
    let found = std::fs::metadata(&place).map_err(unread)?;
    if !found.is_file() || found.len() != size {
        let right = format!(
            "must be a file of {size} bytes with the parameters of [model]: `florin rent fetch` \
             writes such a file"
        );
        return Err(wrong(right));
    }
    let bytes = std::fs::read(&place).map_err(unread)?;
    tensors::decode(model, &bytes).map_err(|error| wrong(error.to_string()))
}

/// A setting of a job that is invalid, under its key in the file.
fn in_file(error: SpecError) -> TaskFileError {
    let (value, expected) = (error.value.clone(), error.expected.clone());
    match error.key {
        "virtual_workers" => TaskFileError::key("order.virtual_workers", value, expected),
        "rows" => TaskFileError::key("rows.rows", value, expected),
        _ => error.into(),
    }
}

impl OrderDraft {
    /// The class of bits and the longest step, as far as the file states them.
    pub(crate) fn stated(&self) -> (Option<Digest>, Option<u64>) {
        let order = &self.terms.order;
        (order.class, order.step_max.map(|step| step.0))
    }

    /// Segments of the whole job, and steps of a segment.
    fn segments(&self) -> Result<(u32, u32), TaskFileError> {
        self.terms.order.segments_of(self.job.steps())
    }

    /// The order of the whole job, or of the segments that an earlier order left.
    ///
    /// # Errors
    /// `INVALID_ORDER` with the key; `ORDER_OF_ANOTHER_JOB`.
    pub(crate) fn order(
        &self,
        path: &Path,
        parties: &OrderParties,
        class_and_step: ClassAndStep,
        rest: Option<&OrderRest>,
    ) -> anyhow::Result<ComputeOrder> {
        let built = self.build(parties, class_and_step, rest).and_then(|order| {
            order
                .check()
                .and_then(|()| order.check_job(&self.job))
                .map_err(|e| named(&e, &order))?;
            Ok(order)
        });
        built.map_err(|error| Refused::from(error).at(path, &self.text).into())
    }

    fn build(
        &self,
        parties: &OrderParties,
        ClassAndStep { class, step_us_max }: ClassAndStep,
        rest: Option<&OrderRest>,
    ) -> Result<ComputeOrder, TaskFileError> {
        let (whole, steps) = self.segments()?;
        let OrderTerms { order: section, audit, deposits, windows, nonce, referee } = &self.terms;
        let whole_rest = OrderRest {
            after: Digest::default(),
            first_segment: 0,
            segments: whole,
            steps,
            start: self.start,
        };
        let part = rest.unwrap_or(&whole_rest);
        if part.steps != steps {
            let right = format!("the earlier order has segments of {} steps", part.steps);
            return Err(TaskFileError::key("order.segments", format!("{steps} steps each"), right));
        }
        let wrong = |error: LeaseError| {
            TaskFileError::key("order.price_max", section.price_max.to_string(), error.to_string())
        };
        let overflow = |error| wrong(LeaseError::from(error));
        let (left, all) = (part.segments.into(), whole.max(1).into());
        let price = defaults::part_up(section.price_max, left, all).map_err(overflow)?;
        defaults::check_audit(audit)?;
        let audit =
            defaults::audit(audit, (part.segments, self.data_class), price).map_err(overflow)?;
        let order = ComputeOrder {
            market: parties.market,
            renter: parties.renter,
            referee: *referee,
            job: self.job.digest(),
            class,
            start: part.start,
            first_segment: part.first_segment,
            nonce: rest.map_or(*nonce, |rest| nonce_after(*nonce, rest.after)),
            segments: part.segments,
            steps,
            price_max: price,
            step_us_max,
            listed: section.listed,
            data_class: self.data_class,
            audit,
            ..ComputeOrder::example()
        };
        let order = ComputeOrder { windows: defaults::windows(windows, &order), ..order };
        // The renter pays the bounty for a fake segment, also in a rest of few segments.
        let price_max = rest.map_or(price, |_| price.max(order.bounty()));
        let order = ComputeOrder { price_max, ..order };
        let deposits = defaults::deposits(deposits, &order).map_err(wrong)?;
        Ok(ComputeOrder { deposits, ..order })
    }

    /// The bytes of a blob of the job.
    pub(crate) fn blob(&self, digest: Digest) -> Option<&Vec<u8>> {
        self.blobs.iter().find(|(own, _)| *own == digest).map(|(_, bytes)| bytes)
    }
}

/// The number of an order that continues another one: the same for the same file and order.
fn nonce_after(nonce: u64, order: Digest) -> u64 {
    let first: [u8; 8] = std::array::from_fn(|at| order.0[at]);
    nonce ^ u64::from_le_bytes(first)
}

/// A rule of orders that is broken, under its key in the file and in its units.
fn named(error: &LeaseError, order: &ComputeOrder) -> TaskFileError {
    let LeaseError::Invalid { what, got, rule } = error else {
        let key = if let LeaseError::Account { .. } = error { "referee" } else { "order" };
        return TaskFileError::key(key, order.referee.to_string(), error.to_string());
    };
    let key = match *what {
        "segments" => "order.segments",
        "steps" => "order.steps",
        "price_max" => "order.price_max",
        "step_us_max" => "order.step_max",
        other => other,
    };
    let is_share = key.starts_with("audit.") && key != "audit.fee" && key != "audit.auditors";
    let is_window = key.starts_with("windows.") && key != "windows.slack";
    let is_amount = key.starts_with("deposits.") || matches!(key, "audit.fee" | "order.price_max");
    let value = match () {
        () if is_amount => format!("\"{}\"", Amount::from_units(*got)),
        () if is_window => format!("{:?}", format_ms(u64::try_from(*got).unwrap_or(u64::MAX))),
        () if is_share || key == "windows.slack" => format!("{got} parts per million"),
        () => got.to_string(),
    };
    let least = match key {
        "deposits.stake" => order.stake_min().ok(),
        "deposits.audit_bond" => Some(order.bounty()),
        _ => None,
    };
    let least = least.map(|least| format!("; here at least {least} FLN")).unwrap_or_default();
    TaskFileError::key(key, value, format!("{rule}{least}"))
}
