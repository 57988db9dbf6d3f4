//! Errors of reading a graph, each with a stable code.

use std::fmt;
use std::io;

/// The reason why a model is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphErrorKind {
    /// The file cannot be read.
    Unreadable,
    /// The file is no archive, or one that `torch.export.save` does not write.
    Archive,
    /// The archive is of another version of PyTorch's format.
    Version,
    /// The description of the graph is not valid.
    Malformed,
    /// An operator that is not in the table.
    Operator,
    /// A kind of argument, input or output that is not supported.
    Unsupported,
    /// A size exceeds a limit.
    TooLarge,
    /// The weights do not match the graph.
    Weights,
}

impl GraphErrorKind {
    /// The stable error code.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unreadable => "MODEL_UNREADABLE",
            Self::Archive => "MODEL_ARCHIVE_INVALID",
            Self::Version => "MODEL_VERSION_UNSUPPORTED",
            Self::Malformed => "MODEL_GRAPH_INVALID",
            Self::Operator => "MODEL_OPERATOR_UNSUPPORTED",
            Self::Unsupported => "MODEL_UNSUPPORTED",
            Self::TooLarge => "MODEL_TOO_LARGE",
            Self::Weights => "MODEL_WEIGHTS_INVALID",
        }
    }
}

/// A model is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphError {
    /// The kind, with its code.
    pub kind: GraphErrorKind,
    /// The reason, and what to do.
    pub why: String,
    /// The line of the model's source at which it is, if the archive has it.
    pub line: Option<String>,
}

impl GraphError {
    pub(super) fn new(kind: GraphErrorKind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into(), line: None }
    }

    /// A model that no task can train.
    pub fn unsupported(why: impl Into<String>) -> Self {
        Self::new(GraphErrorKind::Unsupported, why)
    }

    /// A model that returns one result for all rows.
    pub fn without_rows() -> Self {
        let why = "the model's first output has no dimension of rows: return one result per row, not \
                   their mean";
        Self::unsupported(why)
    }

    pub(super) fn archive(why: impl Into<String>) -> Self {
        Self::new(GraphErrorKind::Archive, why)
    }

    pub(super) fn malformed(why: impl Into<String>) -> Self {
        Self::new(GraphErrorKind::Malformed, why)
    }

    pub(super) fn at(self, line: Option<String>) -> Self {
        Self { line: self.line.or(line), ..self }
    }

    /// The stable error code.
    pub const fn code(&self) -> &'static str {
        self.kind.code()
    }
}

impl From<io::Error> for GraphError {
    fn from(error: io::Error) -> Self {
        Self::new(GraphErrorKind::Unreadable, error.to_string())
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        match &self.line {
            Some(line) => write!(f, " (at `{line}`)"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for GraphError {}
