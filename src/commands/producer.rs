//! The rows of a running program, for `florin participate`.

use florin_learning::RowEncoder;
use florin_learning::data::{FeatureEncoder, NumberScale};
use florin_learning::ranks::RankPlace;
use florin_participant::{FeedSettings, RowFeed};
use florin_protocol::TaskSpec;

use crate::cli::{Participate, RowSource};
use crate::failure::Failure;

/// Refuses options that contradict the source of the rows.
///
/// # Errors
/// `PRODUCER_UNSUPPORTED` with options that need all rows from the start; `PRODUCER_SETTINGS` for
/// settings of a reservoir that files do not have.
pub(super) fn check(arguments: &Participate, place: Option<&RankPlace>) -> anyhow::Result<()> {
    if !matches!(arguments.data, Some(RowSource::Producer(_))) {
        let message = "--reservoir, --min-rows and --new-rows belong to rows that a running program \
            writes, and --data names files: leave them out, or see docs/producers.md";
        return match arguments.reservoir.is_empty() {
            true => Ok(()),
            false => Err(Failure::input("PRODUCER_SETTINGS", message).into()),
        };
    }
    match unsupported(arguments, place) {
        None => Ok(()),
        Some(option) => {
            let message = format!(
                "{option} needs all rows before the first round, and a running program writes them \
                 later: leave it out, or write the rows to a file"
            );
            Err(Failure::input("PRODUCER_UNSUPPORTED", message).into())
        }
    }
}

/// Starts to read the rows of the program that `--data` names; `None` if it names files.
///
/// # Errors
/// The codes of a feed.
pub(super) fn feed(arguments: &Participate, spec: &TaskSpec) -> anyhow::Result<Option<RowFeed>> {
    let Some(RowSource::Producer(source)) = &arguments.data else { return Ok(None) };
    Ok(Some(RowFeed::start(source, encoder(spec), settings(arguments))?))
}

/// The first option that contradicts a producer.
fn unsupported(arguments: &Participate, place: Option<&RankPlace>) -> Option<&'static str> {
    let options = [
        (arguments.rows.is_some(), "--rows"),
        (arguments.noise.noise.is_some(), "--noise"),
        (place.is_some(), "a training on several processes"),
    ];
    options.into_iter().find(|(is_given, _)| *is_given).map(|(_, option)| option)
}

fn settings(arguments: &Participate) -> FeedSettings {
    let reservoir = &arguments.reservoir;
    FeedSettings {
        capacity: reservoir.capacity(),
        rows_min: reservoir.rows_min(),
        new_rows_min: reservoir.new_rows.unwrap_or(0),
        seed: arguments.seed,
    }
}

/// The task's encoding. Without one, features and labels are used as they are.
fn encoder(spec: &TaskSpec) -> RowEncoder {
    florin_work::row_encoder(&spec.data).unwrap_or_else(|| RowEncoder {
        classes: usize::try_from(spec.data.classes).unwrap_or(usize::MAX),
        class_names: Vec::new(),
        features: FeatureEncoder::Uniform {
            width: usize::try_from(spec.data.width).unwrap_or(usize::MAX),
            scale: NumberScale::IDENTITY,
        },
        target: None,
    })
}
