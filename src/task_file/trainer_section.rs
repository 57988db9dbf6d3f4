//! The keys of `[model]` for a trainer, and the model that they describe.

use std::path::Path;

use florin_learning::TensorSpec;
use florin_learning::trainer::{TrainerCode, TrainerError, read_parameters};
use florin_protocol::{Blob, GraphForm, GraphModel, ModelLoss, TensorShape, blob_digest};

use super::TaskFileError;
use super::file::ModelSection;
use super::graph_section::{GraphFile, LossName, loss};

/// Largest file of initial parameters, in bytes.
const INITIAL_BYTES_MAX: u64 = 4 << 30;

/// A trainer of a new task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewTrainer<'a> {
    /// The folder of its code.
    pub(crate) code: &'a Path,
    /// The file of its initial parameters.
    pub(crate) initial: &'a Path,
    /// Whether it has the verb `gradient`.
    pub(crate) has_gradient: bool,
    /// Its loss.
    pub(crate) loss: LossName,
    /// The largest loss of a row, if the buyer states one.
    pub(crate) loss_bound: Option<f64>,
}

/// Reads the code and the initial parameters of a trainer. `holdout` is the source of the rows, and
/// `folder` that of the task file; `None` if no file may be read.
pub(super) fn read_trainer(
    section: &ModelSection,
    holdout: &str,
    folder: Option<&Path>,
) -> Result<GraphFile, TaskFileError> {
    let missing = |key: &str, right: &str| TaskFileError::key(key, "nothing", right);
    let folder = folder.ok_or_else(|| missing("model.code", "no model is read here"))?;
    let path = section.code.as_ref().ok_or_else(|| {
        missing("model.code", "a model of kind \"trainer\" is a folder with a program `trainer`")
    })?;
    let code = TrainerCode::read(&folder.join(path)).map_err(|error: TrainerError| {
        let right = format!("{error} [{}]", error.code());
        TaskFileError::key("model.code", format!("{path:?}"), right)
    })?;
    check_published(path, section, holdout, folder)?;
    let code = code.to_bytes();
    let (tensors, initial) = read_initial(section, folder)?;
    let loss = loss(section)?;
    let outputs = match loss {
        ModelLoss::CrossEntropy { .. } => section.classes.ok_or_else(|| {
            missing("model.classes", "a trainer with the loss cross_entropy has classes")
        })?,
        _ => 1,
    };
    let inputs = section.inputs.ok_or_else(|| {
        missing("model.inputs", "a trainer needs the number of features of a row")
    })?;
    let declared = GraphModel {
        form: GraphForm::Trainer { has_gradient: section.gradient.unwrap_or(false) },
        graph: Blob { digest: blob_digest(&code), bytes: code.len() as u64 },
        frozen: None,
        inputs,
        targets: section.targets.unwrap_or(0),
        outputs,
        loss,
        tensors,
    };
    let blobs = vec![(declared.graph.digest, code)];
    Ok(GraphFile { declared, initial, blobs })
}

/// Refuses a folder of code that has the task file, the initial parameters or the holdout: all its
/// files are published, and every change of one is another program.
fn check_published(
    code: &Path,
    section: &ModelSection,
    holdout: &str,
    folder: &Path,
) -> Result<(), TaskFileError> {
    let real = |path: &Path| std::fs::canonicalize(folder.join(path)).ok();
    let Some(inside) = real(code) else { return Ok(()) };
    // The files in the text of a data source.
    let rows = holdout.split([':', ',', '#']).filter(|part| !part.is_empty()).map(Path::new);
    let beside = [Some(Path::new(".")), section.initial.as_deref()];
    for path in beside.into_iter().flatten().chain(rows) {
        if real(path).is_some_and(|path| path.starts_with(&inside)) {
            let right = "has the task file, the initial parameters or the holdout in it, and all its files are \
                         published: move the program into a folder of its own";
            return Err(TaskFileError::key("model.code", format!("{code:?}"), right));
        }
    }
    Ok(())
}

/// The tensors of the file `model.initial`, in the order of their names, and their numbers.
fn read_initial(
    section: &ModelSection,
    folder: &Path,
) -> Result<(Vec<TensorShape>, Vec<f32>), TaskFileError> {
    let path = section.initial.as_ref().ok_or_else(|| {
        let right = "a trainer needs its initial parameters: a safetensors file of F32 tensors";
        TaskFileError::key("model.initial", "nothing", right)
    })?;
    let wrong = |right: String| TaskFileError::key("model.initial", format!("{path:?}"), right);
    let place = folder.join(path);
    let unread = |error: std::io::Error| wrong(format!("cannot read {}: {error}", place.display()));
    if std::fs::metadata(&place).map_err(unread)?.len() > INITIAL_BYTES_MAX {
        return Err(wrong(format!("has more than {INITIAL_BYTES_MAX} bytes")));
    }
    let bytes = std::fs::read(&place).map_err(unread)?;
    let tensors = read_parameters(&bytes).map_err(wrong)?;
    let size = |size: &usize| u32::try_from(*size).unwrap_or(u32::MAX);
    let shape = |(tensor, _): &(TensorSpec, Vec<f32>)| TensorShape {
        name: tensor.name.clone(),
        shape: tensor.shape.iter().map(size).collect(),
    };
    let shapes = tensors.iter().map(shape).collect();
    let numbers = tensors.into_iter().flat_map(|(_, numbers)| numbers).collect();
    Ok((shapes, numbers))
}
