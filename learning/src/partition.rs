//! Who owns which row: partitions for federations, splits for holdouts.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rand_chacha::ChaCha20Rng;
use rand_distr::{Distribution, Gamma};
use thiserror::Error;

use crate::data::Dataset;
use crate::seed::{Purpose, below, rng, shuffle};

/// Most shards a data set may be cut into.
pub const SHARDS_MAX: usize = 100_000;
/// How often a Dirichlet partition is drawn again when a shard falls short of the minimum, before
/// rows are moved to it.
pub const DRAWS_MAX: u32 = 32;
/// Bounds of the Dirichlet concentration; beyond them its draws are degenerate in floats.
pub const ALPHA_MIN: f64 = 0.001;
/// See [`ALPHA_MIN`].
pub const ALPHA_MAX: f64 = 1_000_000.0;

/// How rows are dealt to shards. `FromStr` reads what `Display` writes:
/// `iid`, `dirichlet:ALPHA`, `label:COUNT` or `file:PATH`.
#[derive(Debug, Clone, PartialEq)]
pub enum Partition {
    /// Shuffled and dealt evenly: sizes differ by one at most.
    Iid,
    /// Each class is spread over the shards by a draw from a symmetric Dirichlet distribution:
    /// the smaller `alpha`, the less alike the shards.
    Dirichlet {
        /// Concentration, [`ALPHA_MIN`] to [`ALPHA_MAX`].
        alpha: f64,
    },
    /// Rows sorted by label and cut into pieces of equal size, `pieces` of them to each shard, so
    /// that a shard knows about `pieces` labels.
    ByLabel {
        /// Pieces per shard, at least 1.
        pieces: usize,
    },
    /// A text file with one line per row: the number of the shard that owns it, from 0.
    File {
        /// The file.
        file: PathBuf,
    },
}

/// Why a data set cannot be cut as asked.
#[derive(Debug, Error)]
pub enum PartitionError {
    /// No shards, or too many.
    #[error("{shards} shards: must be 1 to {SHARDS_MAX}")]
    Shards {
        /// What was asked for.
        shards: usize,
    },
    /// Fewer rows than the shards need together.
    #[error(
        "{rows} rows cannot give {shards} shards {rows_min} rows each: at least {needed} needed"
    )]
    TooFewRows {
        /// Rows there are.
        rows: usize,
        /// Shards asked for.
        shards: usize,
        /// Rows that each must have.
        rows_min: usize,
        /// Their product.
        needed: u128,
    },
    /// A concentration out of bounds.
    #[error("dirichlet alpha is {alpha}: must be {ALPHA_MIN} to {ALPHA_MAX}")]
    Alpha {
        /// What was asked for.
        alpha: f64,
    },
    /// No pieces, or more than rows.
    #[error(
        "{pieces} pieces for each of {shards} shards of {rows} rows: must be 1 or more, and no more than rows in all"
    )]
    Pieces {
        /// Pieces per shard.
        pieces: usize,
        /// Shards.
        shards: usize,
        /// Rows.
        rows: usize,
    },
    /// The file of owners cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line that names no shard.
    #[error("{path}, line {line}: `{text}`; must be the number of a shard, 0 to {last}")]
    Owner {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What was there.
        text: String,
        /// The last shard.
        last: usize,
    },
    /// More or fewer lines than rows.
    #[error("{path} has {lines} lines: the data has {rows} rows, one line each")]
    Lines {
        /// The file.
        path: PathBuf,
        /// Lines there are.
        lines: usize,
        /// Rows there are.
        rows: usize,
    },
    /// The file gives a shard less than the minimum.
    #[error("{path} gives shard {shard} {rows} rows: must be at least {rows_min}")]
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

/// Cuts `data` into `shards` lists of row numbers, each ascending, every row in exactly one, each
/// of at least `rows_min` rows. The same seed cuts the same way everywhere.
///
/// A Dirichlet draw that leaves a shard short is drawn again up to [`DRAWS_MAX`] times; then rows
/// move from the largest shard to the short ones.
pub fn partition(
    data: &Dataset,
    shards: usize,
    how: &Partition,
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
        Partition::Iid => iid(rows, shards, seed),
        Partition::Dirichlet { alpha } => dirichlet(data, shards, *alpha, rows_min, seed)?,
        Partition::ByLabel { pieces } => by_label(data, shards, *pieces, seed)?,
        Partition::File { file } => from_file(file, rows, shards, rows_min)?,
    };
    top_up(&mut cut, rows_min);
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

/// Cuts each class at the running totals of shares drawn for it.
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
            // Every share underflowed, which a tiny alpha does: in the limit one shard has all.
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
    // What somebody wrote down is not ours to rearrange.
    if let Some(shard) = cut.iter().position(|shard| shard.len() < rows_min) {
        let rows = cut[shard].len();
        return Err(PartitionError::ShardTooSmall { path: path(), shard, rows, rows_min });
    }
    Ok(cut)
}

/// Moves rows from the largest shard to those that have too few. Ends, because the shards have
/// `rows_min` rows each on average: while one is short, the largest can spare one.
fn top_up(cut: &mut [Vec<usize>], rows_min: usize) {
    for short in 0..cut.len() {
        while cut[short].len() < rows_min {
            let largest =
                (0..cut.len()).max_by_key(|&shard| (cut[shard].len(), usize::MAX - shard));
            let Some(row) = largest.and_then(|shard| cut[shard].pop()) else { return };
            cut[short].push(row);
        }
    }
}

impl FromStr for Partition {
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

/// Why a word names no partition.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "`{given}` names no partition: write `iid`, `dirichlet:ALPHA` (for example dirichlet:0.5), \
     `label:COUNT` or `file:PATH`"
)]
pub struct PartitionNameError {
    given: String,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iid => f.write_str("iid"),
            Self::Dirichlet { alpha } => write!(f, "dirichlet:{alpha}"),
            Self::ByLabel { pieces } => write!(f, "label:{pieces}"),
            Self::File { file } => write!(f, "file:{}", file.display()),
        }
    }
}

/// How much of a data set one part of a [`split`] takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Part {
    /// So many rows.
    Rows(usize),
    /// This fraction of all rows, 0 to 1, rounded down.
    Fraction(f64),
    /// What the other parts leave. At most one part may say so.
    Rest,
}

/// Why a split cannot be made.
#[derive(Debug, Error, PartialEq)]
pub enum SplitError {
    /// A fraction that is none.
    #[error("part {part} is the fraction {fraction}: must be 0 to 1")]
    Fraction {
        /// Which part, from 0.
        part: usize,
        /// What it asked for.
        fraction: f64,
    },
    /// Two parts want the rest.
    #[error("part {part} is the rest, and so is an earlier one: at most one may be")]
    TwoRests {
        /// The second of them, from 0.
        part: usize,
    },
    /// The parts want more than there is.
    #[error("the parts take {taken} rows: there are {rows}")]
    TooManyRows {
        /// Rows asked for.
        taken: u128,
        /// Rows there are.
        rows: usize,
    },
}

/// Deals `rows` rows at random into disjoint parts, each ascending: train, holdout, test. Rows that
/// no part asks for are in none.
pub fn split(rows: usize, seed: u64, parts: &[Part]) -> Result<Vec<Vec<usize>>, SplitError> {
    let mut sizes = Vec::with_capacity(parts.len());
    let mut rest = None;
    for (at, part) in parts.iter().enumerate() {
        sizes.push(match *part {
            Part::Rows(count) => count,
            Part::Fraction(fraction) if (0.0..=1.0).contains(&fraction) => {
                (fraction * rows as f64) as usize
            }
            Part::Fraction(fraction) => return Err(SplitError::Fraction { part: at, fraction }),
            Part::Rest if rest.is_some() => return Err(SplitError::TwoRests { part: at }),
            Part::Rest => {
                rest = Some(at);
                0
            }
        });
    }
    let taken: u128 = sizes.iter().map(|&size| size as u128).sum();
    if taken > rows as u128 {
        return Err(SplitError::TooManyRows { taken, rows });
    }
    if let Some(at) = rest {
        sizes[at] = rows - taken as usize;
    }
    let mut order: Vec<usize> = (0..rows).collect();
    shuffle(&mut rng(seed, Purpose::Split, 0), &mut order);
    let mut from = 0;
    Ok(sizes
        .into_iter()
        .map(|size| {
            let mut part = order[from..from + size].to_vec();
            part.sort_unstable();
            from += size;
            part
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::{DataSource, load};

    fn data(labels: Vec<u32>, classes: usize) -> Dataset {
        Dataset::new(vec![0.0; labels.len()], labels, 1, classes).unwrap()
    }

    fn partition_strategy() -> impl Strategy<Value = Partition> {
        prop_oneof![
            Just(Partition::Iid),
            (0.001_f64..100.0).prop_map(|alpha| Partition::Dirichlet { alpha }),
            (1_usize..4).prop_map(|pieces| Partition::ByLabel { pieces }),
        ]
    }

    proptest! {
        #[test]
        fn every_row_is_in_exactly_one_shard_and_every_shard_has_the_minimum(
            labels in prop::collection::vec(0_u32..5, 1..200),
            shards in 1_usize..12,
            how in partition_strategy(),
            rows_min in 0_usize..6,
            seed in any::<u64>(),
        ) {
            let data = data(labels, 5);
            match partition(&data, shards, &how, rows_min, seed) {
                Err(PartitionError::TooFewRows { .. }) => {
                    prop_assert!(data.rows() < shards * rows_min);
                }
                Err(PartitionError::Pieces { pieces, .. }) => {
                    prop_assert!(data.rows() < shards * pieces);
                }
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
                Ok(cut) => {
                    prop_assert_eq!(cut.len(), shards);
                    prop_assert!(cut.iter().all(|shard| shard.len() >= rows_min));
                    let mut all: Vec<usize> = cut.concat();
                    all.sort_unstable();
                    prop_assert_eq!(all, (0..data.rows()).collect::<Vec<_>>());
                    prop_assert_eq!(&cut, &partition(&data, shards, &how, rows_min, seed).unwrap());
                }
            }
        }

        #[test]
        fn parts_of_a_split_are_disjoint_and_as_large_as_asked(
            rows in 0_usize..500, first in 0_usize..200, fraction in 0.0_f64..0.5, seed: u64,
        ) {
            let parts = [Part::Rows(first), Part::Rest, Part::Fraction(fraction)];
            match split(rows, seed, &parts) {
                Err(error) => {
                    let taken = first as u128 + (fraction * rows as f64) as u128;
                    prop_assert_eq!(error, SplitError::TooManyRows { taken, rows });
                }
                Ok(cut) => {
                    prop_assert_eq!(cut[0].len(), first);
                    prop_assert_eq!(cut[2].len(), (fraction * rows as f64) as usize);
                    let mut all = cut.concat();
                    all.sort_unstable();
                    prop_assert_eq!(all, (0..rows).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn dirichlet_shards_are_less_alike_the_smaller_alpha_is() {
        let digits = load(&DataSource::Digits).unwrap();
        // Mean over shards of the largest class's share of the shard: 0.1 if all are alike.
        let skew = |alpha| {
            let cut = partition(&digits, 8, &Partition::Dirichlet { alpha }, 10, 3).unwrap();
            let largest = |shard: &Vec<usize>| {
                let counts = digits.subset(shard).unwrap().class_counts();
                *counts.iter().max().unwrap() as f64 / shard.len() as f64
            };
            cut.iter().map(largest).sum::<f64>() / 8.0
        };
        assert!(skew(1000.0) < 0.15, "{}", skew(1000.0));
        assert!(skew(0.1) > 0.4, "{}", skew(0.1));
        assert!(skew(0.01) > skew(0.5) && skew(0.5) > skew(1000.0));
    }

    #[test]
    fn a_shard_by_label_knows_few_labels() {
        let digits = load(&DataSource::Digits).unwrap();
        for shard in partition(&digits, 10, &Partition::ByLabel { pieces: 2 }, 1, 5).unwrap() {
            let counts = digits.subset(&shard).unwrap().class_counts();
            assert!(counts.iter().filter(|&&count| count > 0).count() <= 4, "{counts:?}");
        }
    }

    #[test]
    fn a_file_of_owners_is_taken_at_its_word_or_refused_with_the_line() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("owners.txt");
        let how = Partition::File { file: file.clone() };
        let data = data(vec![0, 1, 0, 1], 2);
        let cut = |text: &str, rows_min| {
            std::fs::write(&file, text).unwrap();
            partition(&data, 2, &how, rows_min, 0).map_err(|error| error.to_string())
        };
        assert_eq!(cut("1\n0\n1\n1\n", 1).unwrap(), [vec![1], vec![0, 2, 3]]);
        let refused = [
            ("1\n0\n2\n1\n", 0, "line 3: `2`; must be the number of a shard, 0 to 1"),
            ("1\n0\nx\n1\n", 0, "line 3: `x`"),
            ("1\n0\n\n1\n", 0, "line 3: ``"),
            ("1\n0\n1\n", 0, "has 3 lines: the data has 4 rows"),
            ("1\n0\n1\n1\n", 2, "gives shard 0 1 rows: must be at least 2"),
        ];
        for (text, rows_min, message) in refused {
            let error = cut(text, rows_min).unwrap_err();
            assert!(error.contains(message), "{text:?}: {error}");
        }
    }

    #[test]
    fn impossible_partitions_are_refused() {
        let data = data(vec![0, 1, 0], 2);
        let error = partition(&data, 2, &Partition::Iid, 2, 0).unwrap_err().to_string();
        assert_eq!(error, "3 rows cannot give 2 shards 2 rows each: at least 4 needed");
        assert!(matches!(
            partition(&data, 0, &Partition::Iid, 0, 0),
            Err(PartitionError::Shards { shards: 0 })
        ));
        for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let how = Partition::Dirichlet { alpha };
            assert!(matches!(partition(&data, 2, &how, 0, 0), Err(PartitionError::Alpha { .. })));
        }
        assert_eq!(
            split(10, 0, &[Part::Fraction(0.5), Part::Rows(6)]),
            Err(SplitError::TooManyRows { taken: 11, rows: 10 })
        );
        assert_eq!(split(10, 0, &[Part::Rest; 2]), Err(SplitError::TwoRests { part: 1 }));
        assert!(matches!(
            split(10, 0, &[Part::Fraction(f64::NAN)]),
            Err(SplitError::Fraction { part: 0, .. })
        ));
    }

    #[test]
    fn a_partition_is_written_as_it_is_read() {
        for text in ["iid", "dirichlet:0.5", "label:2", "file:owners.txt"] {
            assert_eq!(text.parse::<Partition>().unwrap().to_string(), text);
        }
        for text in ["", "dirichlet", "dirichlet:0", "dirichlet:nan", "label:0", "file:", "x"] {
            assert!(text.parse::<Partition>().is_err(), "{text}");
        }
    }
}
