//! The validation rows: commitment to all rows, disclosure of one round's rows, and verification of
//! disclosed rows.

use florin_learning::Dataset;
use florin_learning::data::{canonical_bytes, from_canonical_bytes};
use florin_protocol::{
    Digest, DisclosedRow, DisclosedRows, ErrorCode, HoldoutTree, Rejection, TaskSpec, blob_digest,
    holdout,
};

use crate::convert::model_spec;

/// All rows of a holdout and the Merkle tree over them. As secret as the rows.
#[derive(Debug)]
pub struct CommittedHoldout {
    data: Dataset,
    /// Digest of the canonical bytes, from which the blinding factors are derived.
    dataset_digest: Digest,
    tree: HoldoutTree,
}

/// The bytes of one row, as hashed and disclosed: features, then the label.
fn row_bytes(data: &Dataset, row: usize) -> Vec<u8> {
    let features = data.row(row).iter().flat_map(|value| value.to_le_bytes());
    features.chain(data.labels()[row].to_le_bytes()).collect()
}

impl CommittedHoldout {
    /// Builds the Merkle tree over the rows.
    #[must_use]
    pub fn new(data: Dataset) -> Self {
        let dataset_digest = blob_digest(&canonical_bytes(&data));
        let rows = u32::try_from(data.rows()).unwrap_or(u32::MAX);
        let leaf = |index: u32| {
            let row = row_bytes(&data, index as usize);
            holdout::leaf(index, holdout::blinding_factor(dataset_digest, index), &row)
        };
        let tree = HoldoutTree::new((0..rows).map(leaf).collect());
        Self { data, dataset_digest, tree }
    }

    /// Decodes a holdout's canonical bytes, as the buyer uploads them, and checks that they match
    /// the task's commitment and model.
    ///
    /// # Errors
    /// A [`Rejection`] that names the error.
    pub fn decode(spec: &TaskSpec, bytes: &[u8]) -> Result<Self, Rejection> {
        let bad = |message: String| Rejection::new(ErrorCode::InvalidTask, message);
        let data = from_canonical_bytes(bytes).map_err(|error| bad(format!("holdout: {error}")))?;
        let rows = u64::from(spec.holdout.rows);
        if u64::try_from(data.rows()) != Ok(rows) {
            return Err(bad(format!(
                "the holdout has {} rows, but the task declares {rows}",
                data.rows()
            )));
        }
        model_spec(&spec.model)
            .check_data(&data)
            .map_err(|error| bad(format!("the holdout does not fit the model: {error}")))?;
        let read = Self::new(data);
        if read.root() != spec.holdout.root {
            return Err(bad(format!(
                "the holdout's root is {}, but the task committed to {}",
                read.root(),
                spec.holdout.root
            )));
        }
        Ok(read)
    }

    /// The root to which a task commits.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.tree.root()
    }

    /// Discloses the drawn rows with their proofs; `None` if an index is out of range.
    #[must_use]
    pub fn disclose(&self, drawn: &[u32]) -> Option<DisclosedRows> {
        let show = |index: &u32| {
            let proof = self.tree.proof(*index)?;
            let row = row_bytes(&self.data, *index as usize);
            Some(DisclosedRow {
                index: *index,
                blinding_factor: holdout::blinding_factor(self.dataset_digest, *index),
                row,
                proof,
            })
        };
        Some(DisclosedRows { rows: drawn.iter().map(show).collect::<Option<_>>()? })
    }
}

/// Why disclosed rows are not the validation rows of a round.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DisclosureError {
    /// The bytes do not decode.
    #[error("{0}")]
    Malformed(String),
    /// The number of rows differs from the number drawn.
    #[error("{disclosed} rows are disclosed, but {drawn} were drawn")]
    Count {
        /// Number of disclosed rows.
        disclosed: usize,
        /// Number of drawn rows.
        drawn: usize,
    },
    /// A row that was not drawn, or is not at its position.
    #[error("row {disclosed} of the holdout is disclosed, but row {drawn} was drawn")]
    OtherRow {
        /// Position among the drawn rows, from 0.
        at: usize,
        /// Index of the disclosed row.
        disclosed: u32,
        /// Index of the drawn row.
        drawn: u32,
    },
    /// The buyer did not commit to this row.
    #[error("the proof of row {row} does not lead to the root that the task committed to")]
    NotCommitted {
        /// Position among the drawn rows, from 0.
        at: usize,
        /// Index of the row in the holdout.
        row: u32,
    },
    /// The rows match the commitment, but do not fit the task's model.
    #[error("the rows do not fit the task: {0}")]
    ModelMismatch(String),
}

impl DisclosureError {
    /// Path of the affected line in a report.
    #[must_use]
    pub fn report_path(&self) -> String {
        match self {
            Self::Malformed(_) | Self::Count { .. } | Self::ModelMismatch(_) => {
                "holdout.rows".to_owned()
            }
            Self::OtherRow { at, .. } | Self::NotCommitted { at, .. } => {
                format!("holdout.rows[{at}]")
            }
        }
    }
}

/// Decodes the disclosed rows of a round and verifies that they are the drawn rows and that the
/// task committed to them.
///
/// # Errors
/// The first [`DisclosureError`].
pub fn verify_disclosed_rows(
    spec: &TaskSpec,
    drawn: &[u32],
    bytes: &[u8],
) -> Result<Dataset, DisclosureError> {
    let shown = decode_disclosed_rows(bytes)?;
    check_disclosed_rows(spec, drawn, &shown)?;
    dataset(spec, &shown)
}

/// The disclosed rows in these bytes, without any check of them.
pub(crate) fn decode_disclosed_rows(bytes: &[u8]) -> Result<Vec<DisclosedRow>, DisclosureError> {
    let disclosed = DisclosedRows::from_bytes(bytes);
    Ok(disclosed.map_err(|error| DisclosureError::Malformed(error.to_string()))?.rows)
}

/// Verifies that these are the drawn rows and that the task committed to them.
pub(crate) fn check_disclosed_rows(
    spec: &TaskSpec,
    drawn: &[u32],
    shown: &[DisclosedRow],
) -> Result<(), DisclosureError> {
    if shown.len() != drawn.len() {
        return Err(DisclosureError::Count { disclosed: shown.len(), drawn: drawn.len() });
    }
    for (at, (shown, drawn)) in shown.iter().zip(drawn).enumerate() {
        if shown.index != *drawn {
            return Err(DisclosureError::OtherRow { at, disclosed: shown.index, drawn: *drawn });
        }
        if !shown.verify(spec.holdout.root, spec.holdout.rows) {
            return Err(DisclosureError::NotCommitted { at, row: *drawn });
        }
    }
    Ok(())
}

/// The rows as a data set.
pub(crate) fn dataset(spec: &TaskSpec, shown: &[DisclosedRow]) -> Result<Dataset, DisclosureError> {
    let misfit = |message: String| DisclosureError::ModelMismatch(message);
    let width = spec.data.width as usize;
    let (mut features, mut labels) = (Vec::with_capacity(width * shown.len()), Vec::new());
    for DisclosedRow { index, row, .. } in shown {
        let (words, rest) = row.as_chunks::<4>();
        let Some((label, values)) = words.split_last().filter(|_| rest.is_empty()) else {
            return Err(misfit(format!("row {index} has {} bytes", row.len())));
        };
        if values.len() != width {
            let message = format!("row {index} has {} features, not {width}", values.len());
            return Err(misfit(message));
        }
        features.extend(values.iter().map(|value| f32::from_le_bytes(*value)));
        labels.push(u32::from_le_bytes(*label));
    }
    let data = Dataset::new(features, labels, width, spec.data.classes as usize)
        .map_err(|error| misfit(error.to_string()))?;
    model_spec(&spec.model).check_data(&data).map_err(|error| misfit(error.to_string()))?;
    Ok(data)
}
