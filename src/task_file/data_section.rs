//! The section `[data]` of a task file: the schema of the rows and their encoding. Numbers that the
//! section leaves out are computed from the holdout.

use florin_learning::data::{
    ColumnEncoder, ColumnRole, FeatureEncoder, NumberScale, NumberSummary, RowEncoder, ScaleKind,
    ScaleKindError, Table, TableFeatures, TableProfile, fit_class_names, fit_features, fit_scale,
    fit_target,
};
use florin_protocol::{DecimalFloat, RowEncoding};
use serde::{Deserialize, Deserializer, de};

use super::TaskFileError;
use super::image_section::ImageSection;
use super::token_section::TokenSection;

/// `[data]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DataSection {
    pub(super) width: u32,
    pub(super) classes: u32,
    scale: Option<String>,
    offset: Option<TomlNumber>,
    factor: Option<TomlNumber>,
    fill: Option<TomlNumber>,
    class_names: Option<Vec<String>>,
    columns: Option<Vec<ColumnSection>>,
    image: Option<ImageSection>,
    pub(super) tokens: Option<TokenSection>,
    /// The label is a number, and this is its encoding.
    target: Option<TargetSection>,
    /// Publishes features that are far from unit scale. It is not part of the task.
    #[serde(default)]
    pub(super) accept_unscaled: bool,
}

/// A column of `data.columns`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ColumnSection {
    name: String,
    offset: Option<TomlNumber>,
    factor: Option<TomlNumber>,
    fill: Option<TomlNumber>,
    #[serde(default)]
    missing_indicator: bool,
    categories: Option<Vec<String>>,
    #[serde(default)]
    ignored: bool,
}

/// `data.target`: the encoding, or the rule by which it follows from the holdout.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected \"standard\", \"min_max\", \"none\" or { offset, factor }")]
enum TargetSection {
    Rule(String),
    Scale(TargetScale),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetScale {
    offset: TomlNumber,
    factor: TomlNumber,
}

/// A number of an encoding, written as a TOML number or as text.
#[derive(Debug, Clone, Copy)]
pub(super) struct TomlNumber(DecimalFloat);

impl TomlNumber {
    fn value(self) -> f64 {
        self.0.to_string().parse().expect("a decimal number is a number")
    }
}

impl<'de> Deserialize<'de> for TomlNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number such as 0.5 or 4e-9")]
        enum Written {
            Whole(i64),
            Float(f64),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Whole(number) => number.to_string(),
            Written::Float(number) => format!("{number:e}"),
            Written::Text(text) => text,
        };
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

impl DataSection {
    /// Whether the section declares an encoding.
    pub(super) fn is_encoded(&self) -> bool {
        self.scale.is_some()
            || self.offset.is_some()
            || self.factor.is_some()
            || self.fill.is_some()
            || self.class_names.is_some()
            || self.columns.is_some()
            || self.image.is_some()
            || self.tokens.is_some()
            || self.target.is_some()
    }

    /// The rule for numbers that the section leaves out.
    pub(super) fn scale(&self) -> Result<ScaleKind, TaskFileError> {
        let Some(name) = &self.scale else { return Ok(ScaleKind::Standard) };
        let wrong = |error: ScaleKindError| {
            TaskFileError::key("data.scale", format!("{name:?}"), error.to_string())
        };
        name.parse().map_err(wrong)
    }

    /// Whether the file asks by name for features as they are.
    pub(super) fn scale_name(&self) -> Option<&str> {
        self.scale.as_deref()
    }

    /// The encoding, if the section has all of its numbers; `None` if it declares no encoding, or
    /// one that depends on the holdout.
    pub(super) fn complete_encoding(&self) -> Result<Option<RowEncoding>, TaskFileError> {
        self.check_keys()?;
        self.scale()?;
        let target = match &self.target {
            None => None,
            Some(TargetSection::Scale(scale)) => {
                Some(written_scale(scale.offset, scale.factor, None))
            }
            Some(TargetSection::Rule(_)) => return Ok(None),
        };
        let features = match (&self.columns, self.offset, self.factor) {
            _ if self.image.is_some() => match self.image.as_ref().and_then(ImageSection::complete)
            {
                Some(complete) => complete,
                None => return Ok(None),
            },
            (Some(columns), ..) => {
                let complete = columns.iter().map(ColumnSection::complete).collect();
                let Some(columns) = complete else { return Ok(None) };
                FeatureEncoder::Columns(columns)
            }
            (None, Some(offset), Some(factor)) => {
                let scale = written_scale(offset, factor, self.fill);
                let width = (self.width as usize).saturating_sub(target.is_some().into());
                FeatureEncoder::Uniform { width, scale }
            }
            _ => return Ok(None),
        };
        // Without names the labels are whole numbers, unless the holdout has names.
        let class_names = self.class_names.clone().unwrap_or_default();
        self.declaration(features, class_names, target).map(Some)
    }

    /// The encoding, with the numbers that the section leaves out from rows: those of the holdout or the
    /// order. `section` names them: an error of their cells is one of its source.
    pub(super) fn encoding(
        &self,
        holdout: &Table,
        section: &str,
    ) -> Result<RowEncoding, TaskFileError> {
        let unfit = |error: florin_learning::data::FitError| {
            TaskFileError::key(&format!("{section}.source"), "…", error.to_string())
        };
        let class_names = match &self.class_names {
            Some(names) => names.clone(),
            None if self.target.is_some() => Vec::new(),
            None => fit_class_names(holdout).map_err(unfit)?.0,
        };
        if let Some(complete) = self.complete_encoding()? {
            return Ok(RowEncoding { class_names, ..complete });
        }
        let kind = self.scale()?;
        let profile = TableProfile::new(holdout);
        let features = match (&self.image, &self.columns) {
            (Some(image), _) => image.fitted(kind, holdout).map_err(unfit)?,
            (None, Some(columns)) => {
                let encoder = |column: &ColumnSection| column.fitted(kind, &profile);
                FeatureEncoder::Columns(columns.iter().map(encoder).collect())
            }
            (None, None) => fit_features(holdout, &profile, kind).map_err(unfit)?,
        };
        let target = match &self.target {
            None => None,
            Some(TargetSection::Scale(scale)) => {
                Some(written_scale(scale.offset, scale.factor, None))
            }
            Some(TargetSection::Rule(name)) => {
                let kind = name.parse().map_err(|error: ScaleKindError| {
                    TaskFileError::key("data.target", format!("{name:?}"), error.to_string())
                })?;
                Some(fit_target(holdout, kind).map_err(unfit)?)
            }
        };
        self.declaration(features, class_names, target)
    }

    fn declaration(
        &self,
        features: FeatureEncoder,
        class_names: Vec<String>,
        target: Option<NumberScale>,
    ) -> Result<RowEncoding, TaskFileError> {
        let classes = self.classes as usize;
        florin_work::row_encoding(&RowEncoder { classes, class_names, features, target })
            .map_err(|error| TaskFileError::key("data.scale", "…", error.to_string()))
    }

    /// Refuses keys that contradict each other.
    pub(super) fn check_keys(&self) -> Result<(), TaskFileError> {
        let both = self.offset.is_some() == self.factor.is_some();
        if !both || (self.fill.is_some() && self.offset.is_none()) {
            let right = "offset and factor belong together, and fill belongs to them";
            return Err(TaskFileError::key("data.offset", "…", right));
        }
        if self.columns.is_some() && self.offset.is_some() {
            let right = "data.columns have an offset and a factor each: remove this one";
            return Err(TaskFileError::key("data.offset", "…", right));
        }
        let others = [
            self.columns.is_some(),
            self.image.is_some(),
            self.offset.is_some(),
            self.class_names.is_some(),
            self.target.is_some(),
        ];
        if self.tokens.is_some() && others.contains(&true) {
            let right =
                "a row of tokens has no columns, scale, labels or target: remove these keys";
            return Err(TaskFileError::key("data.tokens", "…", right));
        }
        if let Some(image) = &self.image {
            image.check()?;
            if self.columns.is_some() || self.offset.is_some() {
                let right =
                    "an image has its own offsets and factors, and no columns: remove these";
                return Err(TaskFileError::key("data.image", "…", right));
            }
        }
        for column in self.columns.iter().flatten() {
            let is_numeric = column.offset.is_some() || column.fill.is_some();
            let kinds = [is_numeric, column.categories.is_some(), column.ignored];
            let pairs = column.offset.is_some() == column.factor.is_some();
            if kinds.iter().filter(|kind| **kind).count() > 1 || !pairs {
                let right = "a column has offset and factor together, or categories, or ignored";
                return Err(TaskFileError::key(
                    "data.columns",
                    format!("{:?}", column.name),
                    right,
                ));
            }
        }
        Ok(())
    }
}

pub(super) fn written_scale(
    offset: TomlNumber,
    factor: TomlNumber,
    fill: Option<TomlNumber>,
) -> NumberScale {
    NumberScale {
        offset: offset.value(),
        factor: factor.value(),
        fill: fill.map(TomlNumber::value),
    }
}

impl ColumnSection {
    /// The encoder of a column that needs no numbers from the holdout.
    fn complete(&self) -> Option<ColumnEncoder> {
        let role = match (&self.categories, self.offset, self.factor) {
            _ if self.ignored => ColumnRole::Ignored,
            (Some(categories), ..) => ColumnRole::OneHot(categories.clone()),
            (None, Some(offset), Some(factor)) => ColumnRole::Numeric {
                scale: written_scale(offset, factor, self.fill),
                missing_indicator: self.missing_indicator,
            },
            _ => return None,
        };
        Some(ColumnEncoder { name: self.name.clone(), role })
    }

    /// The encoder of the column, with numbers from the holdout if the section has none.
    fn fitted(&self, kind: ScaleKind, holdout: &TableProfile) -> ColumnEncoder {
        self.complete().unwrap_or_else(|| {
            let mut scale = fit_scale(kind, range_of(holdout, &self.name));
            scale.fill = self.fill.map(TomlNumber::value).or(scale.fill);
            let role = ColumnRole::Numeric { scale, missing_indicator: self.missing_indicator };
            ColumnEncoder { name: self.name.clone(), role }
        })
    }
}

/// The range of a column of numbers; `None` if there is no such column, which the encoding of the
/// holdout refuses.
fn range_of(profile: &TableProfile, name: &str) -> Option<NumberSummary> {
    profile.columns.iter().find(|column| column.name == name)?.summary.range()
}

/// The names of a table's features in the order of an encoding, for messages.
pub(super) fn feature_name(encoding: Option<&RowEncoder>, table: &Table, feature: usize) -> String {
    let by_position = || match table.features() {
        TableFeatures::Columns(columns) => columns.get(feature).map(|column| column.name.clone()),
        TableFeatures::Matrix { .. } | TableFeatures::Images(_) => None,
    };
    let name = match encoding.map(|encoder| &encoder.features) {
        Some(FeatureEncoder::Columns(columns)) => {
            let mut left = feature;
            let holds = |column: &&ColumnEncoder| match left.checked_sub(column.role.features()) {
                Some(rest) => {
                    left = rest;
                    false
                }
                None => true,
            };
            columns.iter().find(holds).map(|column| column.name.clone())
        }
        _ => by_position(),
    };
    name.map_or_else(|| format!("feature {feature}"), |name| format!("column {name:?}"))
}
