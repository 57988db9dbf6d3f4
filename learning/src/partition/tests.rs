//! Every row is in one shard, and impossible partitions are refused.

use proptest::prelude::*;

use super::*;
use crate::data::{DataSource, load};

fn data(labels: Vec<u32>, classes: usize) -> Dataset {
    Dataset::new(vec![0.0; labels.len()], labels, 1, classes).unwrap()
}

fn partition_strategy() -> impl Strategy<Value = PartitionScheme> {
    prop_oneof![
        Just(PartitionScheme::Iid),
        (0.001_f64..100.0).prop_map(|alpha| PartitionScheme::Dirichlet { alpha }),
        (1_usize..4).prop_map(|pieces| PartitionScheme::ByLabel { pieces }),
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
    fn parts_of_a_split_are_disjoint_and_have_the_requested_sizes(
        rows in 0_usize..500, first in 0_usize..200, fraction in 0.0_f64..0.5, seed: u64,
    ) {
        let parts = [SplitPart::Rows(first), SplitPart::Rest, SplitPart::Fraction(fraction)];
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
fn dirichlet_shards_are_more_heterogeneous_for_smaller_alpha() {
    let digits = load(&DataSource::Digits).unwrap();
    // Mean over the shards of the largest class's share of the shard: 0.1 if all shards are
    // equal.
    let skew = |alpha| {
        let cut = partition(&digits, 8, &PartitionScheme::Dirichlet { alpha }, 10, 3).unwrap();
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
fn a_shard_by_label_has_few_labels() {
    let digits = load(&DataSource::Digits).unwrap();
    for shard in partition(&digits, 10, &PartitionScheme::ByLabel { pieces: 2 }, 1, 5).unwrap() {
        let counts = digits.subset(&shard).unwrap().class_counts();
        assert!(counts.iter().filter(|&&count| count > 0).count() <= 4, "{counts:?}");
    }
}

#[test]
fn a_file_of_shard_indices_is_followed_or_refused_with_its_line() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("owners.txt");
    let how = PartitionScheme::File { file: file.clone() };
    let data = data(vec![0, 1, 0, 1], 2);
    let cut = |text: &str, rows_min| {
        std::fs::write(&file, text).unwrap();
        partition(&data, 2, &how, rows_min, 0).map_err(|error| error.to_string())
    };
    assert_eq!(cut("1\n0\n1\n1\n", 1).unwrap(), [vec![1], vec![0, 2, 3]]);
    let refused = [
        ("1\n0\n2\n1\n", 0, "line 3: `2`; must be the index of a shard, 0 to 1"),
        ("1\n0\nx\n1\n", 0, "line 3: `x`"),
        ("1\n0\n\n1\n", 0, "line 3: ``"),
        ("1\n0\n1\n", 0, "has 3 lines, but the data has 4 rows"),
        ("1\n0\n1\n1\n", 2, "assigns 1 rows to shard 0: must be at least 2"),
    ];
    for (text, rows_min, message) in refused {
        let error = cut(text, rows_min).unwrap_err();
        assert!(error.contains(message), "{text:?}: {error}");
    }
}

#[test]
fn impossible_partitions_are_refused() {
    let data = data(vec![0, 1, 0], 2);
    let error = partition(&data, 2, &PartitionScheme::Iid, 2, 0).unwrap_err().to_string();
    assert_eq!(error, "3 rows cannot give 2 shards 2 rows each: at least 4 needed");
    assert!(matches!(
        partition(&data, 0, &PartitionScheme::Iid, 0, 0),
        Err(PartitionError::Shards { shards: 0 })
    ));
    for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let how = PartitionScheme::Dirichlet { alpha };
        assert!(matches!(partition(&data, 2, &how, 0, 0), Err(PartitionError::Alpha { .. })));
    }
    assert_eq!(
        split(10, 0, &[SplitPart::Fraction(0.5), SplitPart::Rows(6)]),
        Err(SplitError::TooManyRows { taken: 11, rows: 10 })
    );
    assert_eq!(split(10, 0, &[SplitPart::Rest; 2]), Err(SplitError::TwoRests { part: 1 }));
    assert!(matches!(
        split(10, 0, &[SplitPart::Fraction(f64::NAN)]),
        Err(SplitError::Fraction { part: 0, .. })
    ));
}

#[test]
fn partition_names_round_trip() {
    for text in ["iid", "dirichlet:0.5", "label:2", "file:owners.txt"] {
        assert_eq!(text.parse::<PartitionScheme>().unwrap().to_string(), text);
    }
    for text in ["", "dirichlet", "dirichlet:0", "dirichlet:nan", "label:0", "file:", "x"] {
        assert!(text.parse::<PartitionScheme>().is_err(), "{text}");
    }
}
