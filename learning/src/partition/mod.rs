//! Partitions of rows over participants, and splits for holdouts.

mod split;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rand_chacha::ChaCha20Rng;
use rand_distr::{Distribution, Gamma};
use thiserror::Error;

use crate::data::Dataset;
use crate::rng::{Purpose, below, rng, shuffle};
pub use split::{SplitError, SplitPart, split};

/// Largest number of shards.
pub const SHARDS_MAX: usize = 100_000;
/// Number of Dirichlet draws if a shard is below the minimum, before rows are moved to it.
pub const DRAWS_MAX: u32 = 32;
/// Bounds of the Dirichlet concentration; beyond them draws are degenerate in floating point.
pub const ALPHA_MIN: f64 = 0.001;
/// See [`ALPHA_MIN`].
pub const ALPHA_MAX: f64 = 1_000_000.0;

/// The partition scheme. `FromStr` parses the output of `Display`: `iid`, `dirichlet:ALPHA`,
/// `label:COUNT` or `file:PATH`.
#[derive(Debug, Clone, PartialEq)]
pub enum PartitionScheme {
    /// Shuffled and divided evenly: sizes differ by at most one.
    Iid,
    /// Each class is divided over the shards by a draw from a symmetric Dirichlet distribution: the
    /// smaller `alpha`, the more heterogeneous the shards.
    Dirichlet {
        /// Concentration, [`ALPHA_MIN`] to [`ALPHA_MAX`].
        alpha: f64,
    },
    /// Rows are sorted by label and cut into pieces of equal size; each shard gets `pieces` of
    /// them, and so about `pieces` labels.
    ByLabel {
        /// Pieces per shard, at least 1.
        pieces: usize,
    },
    /// A text file with one line per row: the index of its shard, from 0.
    File {
        /// The file.
        file: PathBuf,
    },
}

/// The partition cannot be made.
#[derive(Debug, Error)]
pub enum PartitionError {
    /// The number of shards is out of bounds.
    #[error("{shards} shards: must be 1 to {SHARDS_MAX}")]
    Shards {
        /// The number requested.
        shards: usize,
    },
    /// There are fewer rows than the shards need.
    #[error(
        "{rows} rows cannot give {shards} shards {rows_min} rows each: at least {needed} needed"
    )]
    TooFewRows {
        /// Number of rows.
        rows: usize,
        /// Number of shards.
        shards: usize,
        /// Smallest number of rows per shard.
        rows_min: usize,
        /// Their product.
        needed: u128,
    },
    /// The concentration is out of bounds.
    #[error("dirichlet alpha is {alpha}: must be {ALPHA_MIN} to {ALPHA_MAX}")]
    Alpha {
        /// The concentration.
        alpha: f64,
    },
    /// The number of pieces is 0 or exceeds the rows.
    #[error(
        "{pieces} pieces for each of {shards} shards of {rows} rows: must be at least 1, and at \
         most the number of rows in total"
    )]
    Pieces {
        /// Pieces per shard.
        pieces: usize,
        /// Shards.
        shards: usize,
        /// Rows.
        rows: usize,
    },
    /// The file of shard indices cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line is not the index of a shard.
    #[error("{path}, line {line}: `{text}`; must be the index of a shard, 0 to {last}")]
    Owner {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// The line's text.
        text: String,
        /// Index of the last shard.
        last: usize,
    },
    /// The number of lines differs from the number of rows.
    #[error("{path} has {lines} lines, but the data has {rows} rows: must have one line per row")]
    Lines {
        /// The file.
        path: PathBuf,
        /// Number of lines.
        lines: usize,
        /// Number of rows.
        rows: usize,
    },
    /// The file assigns too few rows to a shard.
    #[error("{path} assigns {rows} rows to shard {shard}: must be at least {rows_min}")]
    ShardTooSmall {
        /// The file.
        path: PathBuf,
        /// The shard.
        shard: usize,
        /// Its rows.
        rows: usize,
        /// The minimum.
        rows_min: usize,
    },
}

/// Divides `data` into `shards` ascending lists of row indices; every row is in exactly one, and
/// each has at least `rows_min` rows. The same seed gives the same partition on every machine.
///
/// A Dirichlet draw with a shard below the minimum is repeated up to [`DRAWS_MAX`] times; after
/// that, rows are moved from the largest shard to the short ones.
pub fn partition(
    data: &Dataset,
    shards: usize,
    how: &PartitionScheme,
    rows_min: usize,
    seed: u64,
) -> Result<Vec<Vec<usize>>, PartitionError> {
    let rows = data.rows();
    if shards == 0 || shards > SHARDS_MAX {
        return Err(PartitionError::Shards { shards });
    }
    let needed = shards as u128 * rows_min as u128;
    if (rows as u128) < needed {
        return Err(PartitionError::TooFewRows { rows, shards, rows_min, needed });
    }
    let mut cut = match how {
        PartitionScheme::Iid => iid(rows, shards, seed),
        PartitionScheme::Dirichlet { alpha } => dirichlet(data, shards, *alpha, rows_min, seed)?,
        PartitionScheme::ByLabel { pieces } => by_label(data, shards, *pieces, seed)?,
        PartitionScheme::File { file } => from_file(file, rows, shards, rows_min)?,
    };
    fill_short_shards(&mut cut, rows_min);
    for shard in &mut cut {
        shard.sort_unstable();
    }
    Ok(cut)
}

fn iid(rows: usize, shards: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..rows).collect();
    shuffle(&mut rng(seed, Purpose::Partition, 0), &mut order);
    let mut cut = vec![Vec::new(); shards];
    for (at, row) in order.into_iter().enumerate() {
        cut[at % shards].push(row);
    }
    cut
}

fn rows_by_class(data: &Dataset) -> Vec<Vec<usize>> {
    let mut classes = vec![Vec::new(); data.classes()];
    for (row, &label) in data.labels().iter().enumerate() {
        classes[label as usize].push(row);
    }
    classes
}

fn dirichlet(
    data: &Dataset,
    shards: usize,
    alpha: f64,
    rows_min: usize,
    seed: u64,
) -> Result<Vec<Vec<usize>>, PartitionError> {
    let refused = PartitionError::Alpha { alpha };
    if !(ALPHA_MIN..=ALPHA_MAX).contains(&alpha) {
        return Err(refused);
    }
    let gamma = Gamma::new(alpha, 1.0).map_err(|_| refused)?;
    let classes = rows_by_class(data);
    let mut cut = Vec::new();
    for draw in 0..DRAWS_MAX {
        cut = dirichlet_draw(&classes, shards, &gamma, &mut rng(seed, Purpose::Partition, draw));
        if cut.iter().all(|shard| shard.len() >= rows_min) {
            break;
        }
    }
    Ok(cut)
}

/// Divides each class at the cumulative shares drawn for it.
fn dirichlet_draw(
    classes: &[Vec<usize>],
    shards: usize,
    gamma: &Gamma<f64>,
    rng: &mut ChaCha20Rng,
) -> Vec<Vec<usize>> {
    let mut cut = vec![Vec::new(); shards];
    for class in classes {
        let mut order = class.clone();
        shuffle(rng, &mut order);
        let shares: Vec<f64> = (0..shards).map(|_| gamma.sample(rng)).collect();
        let total: f64 = shares.iter().sum();
        if total <= 0.0 {
            // Every share underflowed, which happens for a tiny alpha: in the limit one shard
            // has all rows.
            cut[below(rng, shards as u64) as usize].extend(order);
            continue;
        }
        let (mut reached, mut from) = (0.0, 0);
        for (shard, share) in shares.iter().enumerate() {
            reached += share;
            let last = shard + 1 == shards;
            let to =
                if last { order.len() } else { (reached / total * order.len() as f64) as usize };
            cut[shard].extend_from_slice(&order[from..to.max(from)]);
            from = to.max(from);
        }
    }
    cut
}

fn by_label(
    data: &Dataset,
    shards: usize,
    pieces: usize,
    seed: u64,
) -> Result<Vec<Vec<usize>>, PartitionError> {
    let rows = data.rows();
    let Some(all) = shards.checked_mul(pieces).filter(|&all| all > 0 && all <= rows) else {
        return Err(PartitionError::Pieces { pieces, shards, rows });
    };
    let mut rng = rng(seed, Purpose::Partition, 0);
    let mut sorted = Vec::with_capacity(rows);
    for mut class in rows_by_class(data) {
        shuffle(&mut rng, &mut class);
        sorted.extend(class);
    }
    let mut order: Vec<usize> = (0..all).collect();
    shuffle(&mut rng, &mut order);
    let mut cut = vec![Vec::new(); shards];
    for (at, piece) in order.into_iter().enumerate() {
        let start = piece as u128 * rows as u128 / all as u128;
        let end = (piece as u128 + 1) * rows as u128 / all as u128;
        cut[at % shards].extend_from_slice(&sorted[start as usize..end as usize]);
    }
    Ok(cut)
}

fn from_file(
    path: &Path,
    rows: usize,
    shards: usize,
    rows_min: usize,
) -> Result<Vec<Vec<usize>>, PartitionError> {
    let path = || path.to_owned();
    let text = std::fs::read_to_string(path())
        .map_err(|source| PartitionError::Unreadable { path: path(), source })?;
    let lines = text.lines().count();
    if lines != rows {
        return Err(PartitionError::Lines { path: path(), lines, rows });
    }
    let mut cut = vec![Vec::new(); shards];
    for (row, line) in text.lines().enumerate() {
        let owner = line.trim().parse::<usize>().ok().filter(|&owner| owner < shards);
        let owner = owner.ok_or_else(|| PartitionError::Owner {
            path: path(),
            line: row + 1,
            text: line.chars().take(40).collect(),
            last: shards - 1,
        })?;
        cut[owner].push(row);
    }
    // An explicit assignment is not rearranged.
    if let Some(shard) = cut.iter().position(|shard| shard.len() < rows_min) {
        let rows = cut[shard].len();
        return Err(PartitionError::ShardTooSmall { path: path(), shard, rows, rows_min });
    }
    Ok(cut)
}

/// Moves rows from the largest shard to shards below the minimum. It terminates, because the shards
/// have at least `rows_min` rows on average: while one is short, the largest can give one away.
fn fill_short_shards(cut: &mut [Vec<usize>], rows_min: usize) {
    for short in 0..cut.len() {
        while cut[short].len() < rows_min {
            let largest =
                (0..cut.len()).max_by_key(|&shard| (cut[shard].len(), usize::MAX - shard));
            let Some(row) = largest.and_then(|shard| cut[shard].pop()) else { return };
            cut[short].push(row);
        }
    }
}

impl FromStr for PartitionScheme {
    type Err = PartitionNameError;

    fn from_str(text: &str) -> Result<Self, PartitionNameError> {
        let fail = || PartitionNameError { given: text.to_owned() };
        match text.split_once(':') {
            None if text == "iid" => Ok(Self::Iid),
            Some(("dirichlet", alpha)) => match alpha.parse::<f64>() {
                Ok(alpha) if (ALPHA_MIN..=ALPHA_MAX).contains(&alpha) => {
                    Ok(Self::Dirichlet { alpha })
                }
                _ => Err(fail()),
            },
            Some(("label", pieces)) => match pieces.parse() {
                Ok(pieces) if pieces > 0 => Ok(Self::ByLabel { pieces }),
                _ => Err(fail()),
            },
            Some(("file", file)) if !file.is_empty() => Ok(Self::File { file: file.into() }),
            _ => Err(fail()),
        }
    }
}

/// The text is not a partition scheme.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "`{given}` is not a partition: use `iid`, `dirichlet:ALPHA` (for example dirichlet:0.5), \
     `label:COUNT` or `file:PATH`"
)]
pub struct PartitionNameError {
    given: String,
}

impl fmt::Display for PartitionScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iid => f.write_str("iid"),
            Self::Dirichlet { alpha } => write!(f, "dirichlet:{alpha}"),
            Self::ByLabel { pieces } => write!(f, "label:{pieces}"),
            Self::File { file } => write!(f, "file:{}", file.display()),
        }
    }
}
