//! The rows that judge: committing to all of them, showing those of one round, and reading what was shown.

use florin_learning::Dataset;
use florin_learning::data::{canonical_bytes, from_canonical_bytes};
use florin_protocol::{
    Code, Digest, Rejection, RowTree, ShownRow, ShownRows, TaskSpec, blob_digest, holdout,
};

use crate::convert::model_spec;

/// All rows of a holdout and the tree over them. As secret as the rows.
#[derive(Debug)]
pub struct Committed {
    data: Dataset,
    /// Digest of the canonical bytes: what the blinds follow from.
    whole: Digest,
    tree: RowTree,
}

/// The bytes of one row as they are hashed and shown: features, then the label.
fn row_bytes(data: &Dataset, row: usize) -> Vec<u8> {
    let features = data.row(row).iter().flat_map(|value| value.to_le_bytes());
    features.chain(data.labels()[row].to_le_bytes()).collect()
}

impl Committed {
    /// Builds the tree over the rows.
    #[must_use]
    pub fn new(data: Dataset) -> Self {
        let whole = blob_digest(&canonical_bytes(&data));
        let rows = u32::try_from(data.rows()).unwrap_or(u32::MAX);
        let leaf = |index: u32| {
            let row = row_bytes(&data, index as usize);
            holdout::leaf(index, holdout::blind(whole, index), &row)
        };
        let tree = RowTree::new((0..rows).map(leaf).collect());
        Self { data, whole, tree }
    }

    /// Reads a holdout's canonical bytes, as the buyer uploads them: rows that the task committed to and its model can
    /// judge by.
    ///
    /// # Errors
    /// A [`Rejection`] that names what is wrong.
    pub fn read(spec: &TaskSpec, bytes: &[u8]) -> Result<Self, Rejection> {
        let bad = |message: String| Rejection::new(Code::BadTask, message);
        let data = from_canonical_bytes(bytes).map_err(|error| bad(format!("holdout: {error}")))?;
        let rows = u64::from(spec.holdout.rows);
        if u64::try_from(data.rows()) != Ok(rows) {
            return Err(bad(format!("the holdout has {} rows: the task says {rows}", data.rows())));
        }
        model_spec(&spec.model)
            .check_fits(&data)
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

    /// What a task commits to.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.tree.root()
    }

    /// The drawn rows with their proofs; `None` if one of them is not there.
    #[must_use]
    pub fn show(&self, drawn: &[u32]) -> Option<ShownRows> {
        let show = |index: &u32| {
            let proof = self.tree.proof(*index)?;
            let row = row_bytes(&self.data, *index as usize);
            Some(ShownRow { index: *index, blind: holdout::blind(self.whole, *index), row, proof })
        };
        Some(ShownRows { rows: drawn.iter().map(show).collect::<Option<_>>()? })
    }
}

/// Why the rows shown for a round are not those that should judge it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShownError {
    /// Not the bytes of shown rows.
    #[error("{0}")]
    Malformed(String),
    /// More or fewer than were drawn.
    #[error("{shown} rows are shown: {drawn} were drawn")]
    Count {
        /// How many there are.
        shown: usize,
        /// How many there should be.
        drawn: usize,
    },
    /// A row that was not drawn, or not in its place.
    #[error("row {shown} of the holdout is shown: row {drawn} was drawn")]
    OtherRow {
        /// Which of the drawn rows, from 0.
        at: usize,
        /// The one there is.
        shown: u32,
        /// The one there should be.
        drawn: u32,
    },
    /// Nothing that the buyer committed to.
    #[error("the proof of row {row} does not lead to the root that the task committed to")]
    NotCommitted {
        /// Which of the drawn rows, from 0.
        at: usize,
        /// Its place in the holdout.
        row: u32,
    },
    /// Committed to, but no row of this task.
    #[error("the rows do not fit the task: {0}")]
    Misfit(String),
}

impl ShownError {
    /// Which line of a report it is about.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Malformed(_) | Self::Count { .. } | Self::Misfit(_) => "holdout.rows".to_owned(),
            Self::OtherRow { at, .. } | Self::NotCommitted { at, .. } => {
                format!("holdout.rows[{at}]")
            }
        }
    }
}

/// Reads the rows shown for a round: those that were drawn, proven to be those the task committed to.
///
/// # Errors
/// The first [`ShownError`].
pub fn check_shown(spec: &TaskSpec, drawn: &[u32], bytes: &[u8]) -> Result<Dataset, ShownError> {
    let shown = ShownRows::from_bytes(bytes)
        .map_err(|error| ShownError::Malformed(error.to_string()))?
        .rows;
    if shown.len() != drawn.len() {
        return Err(ShownError::Count { shown: shown.len(), drawn: drawn.len() });
    }
    for (at, (shown, drawn)) in shown.iter().zip(drawn).enumerate() {
        if shown.index != *drawn {
            return Err(ShownError::OtherRow { at, shown: shown.index, drawn: *drawn });
        }
        if !shown.belongs(spec.holdout.root, spec.holdout.rows) {
            return Err(ShownError::NotCommitted { at, row: *drawn });
        }
    }
    dataset(spec, &shown)
}

fn dataset(spec: &TaskSpec, shown: &[ShownRow]) -> Result<Dataset, ShownError> {
    let misfit = |message: String| ShownError::Misfit(message);
    let width = spec.data.width as usize;
    let (mut features, mut labels) = (Vec::with_capacity(width * shown.len()), Vec::new());
    for ShownRow { index, row, .. } in shown {
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
    model_spec(&spec.model).check_fits(&data).map_err(|error| misfit(error.to_string()))?;
    Ok(data)
}
