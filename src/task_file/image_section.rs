//! `data.image`: the size of images and the scales of their channels; and the shape that a new task
//! writes there.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use florin_learning::data::{
    FeatureEncoder, FitError, ImageEncoder, ImageShape, ScaleKind, Table, fit_images,
};
use florin_learning::graph::{Dimension, Graph, InputRole};
use florin_protocol::limits::IMAGE_SIDE_MAX;
use florin_protocol::{ImageEncoding, NumberEncoding};
use serde::Deserialize;

use super::TaskFileError;
use super::data_section::{TomlNumber, written_scale};

const KEY: &str = "data.image";

/// `data.image`. Without offsets and factors, they follow from the holdout.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ImageSection {
    channels: u32,
    height: u32,
    width: u32,
    resize: Option<u32>,
    offset: Option<Vec<TomlNumber>>,
    factor: Option<Vec<TomlNumber>>,
}

impl ImageSection {
    /// Refuses sizes that no image can have, and numbers that do not belong to a channel each.
    pub(super) fn check(&self) -> Result<(), TaskFileError> {
        let sides = [Some(self.height), Some(self.width), self.resize];
        let least = self.height.max(self.width);
        if !matches!(self.channels, 1 | 3)
            || !sides.into_iter().flatten().all(|side| (1..=IMAGE_SIDE_MAX).contains(&side))
            || self.resize.is_some_and(|side| side < least)
        {
            let right = format!(
                "an image has 1 or 3 channels, height and width of 1 to {IMAGE_SIDE_MAX} pixels, and \
                 resize is at least both, or left out"
            );
            return Err(TaskFileError::key(KEY, "…", right));
        }
        let fits = |numbers: &Option<Vec<TomlNumber>>| {
            numbers.as_ref().is_none_or(|numbers| numbers.len() == self.channels as usize)
        };
        let both = self.offset.is_some() == self.factor.is_some();
        if !both || !fits(&self.offset) || !fits(&self.factor) {
            let right = "offset and factor belong together, with one number for each channel";
            return Err(TaskFileError::key(KEY, "…", right));
        }
        Ok(())
    }

    fn shape(&self) -> ImageShape {
        let [channels, height, width] =
            [self.channels, self.height, self.width].map(|size| size as usize);
        ImageShape { channels, height, width }
    }

    /// The encoder, if the section has the numbers of the channels.
    pub(super) fn complete(&self) -> Option<FeatureEncoder> {
        let (offset, factor) = (self.offset.as_ref()?, self.factor.as_ref()?);
        let scales = offset.iter().zip(factor);
        let channels = scales.map(|(offset, factor)| written_scale(*offset, *factor, None));
        let ImageShape { height, width, .. } = self.shape();
        let (resize, channels) = (self.resize.map(|side| side as usize), channels.collect());
        Some(FeatureEncoder::Images(ImageEncoder { height, width, resize, channels }))
    }

    /// The encoder, with numbers from the holdout if the section has none.
    pub(super) fn fitted(
        &self,
        kind: ScaleKind,
        holdout: &Table,
    ) -> Result<FeatureEncoder, FitError> {
        if let Some(complete) = self.complete() {
            return Ok(complete);
        }
        let resize = self.resize.map(|side| side as usize);
        Ok(FeatureEncoder::Images(fit_images(holdout, self.shape(), resize, kind)?))
    }
}

/// The key of an encoding, as a line of `[data]`.
pub(super) fn image_key(images: &ImageEncoding) -> String {
    let numbers = |number: fn(&NumberEncoding) -> String| -> String {
        images.channels.iter().map(number).collect::<Vec<_>>().join(", ")
    };
    let resize = images.resize.map(|side| format!("resize = {side}, ")).unwrap_or_default();
    format!(
        "image = {{ channels = {}, height = {}, width = {}, {resize}offset = [{}], factor = [{}] }}",
        images.channels.len(),
        images.height,
        images.width,
        numbers(|channel| channel.offset.to_string()),
        numbers(|channel| channel.factor.to_string()),
    )
}

/// The shape of a model's images on the command line: `3x64x64`, or `64x64` for three channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageArgument(pub(crate) ImageShape);

impl FromStr for ImageArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "write CHANNELSxHEIGHTxWIDTH, such as 3x64x64 or 1x28x28, or HEIGHTxWIDTH, with 1 or 3 \
                 channels and sides of 1 to {IMAGE_SIDE_MAX}"
            )
        };
        let sizes: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        let (channels, height, width) = match sizes.map_err(|_| wrong())?.as_slice() {
            [height, width] => (3, *height, *width),
            [channels, height, width] => (*channels, *height, *width),
            _ => return Err(wrong()),
        };
        let is_side = |side: usize| (1..=IMAGE_SIDE_MAX as usize).contains(&side);
        match matches!(channels, 1 | 3) && is_side(height) && is_side(width) {
            true => Ok(Self(ImageShape { channels, height, width })),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for ImageArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.0.channels, self.0.height, self.0.width)
    }
}

/// The shape of the images that a graph takes, `[rows, channels, height, width]`. The error is a
/// sentence.
pub(super) fn image_of_graph(graph: &Graph, file: &Path) -> Result<ImageShape, String> {
    let inputs = graph.inputs.iter().filter(|input| input.role == InputRole::User);
    let shapes: Vec<&[Dimension]> = inputs.map(|input| input.tensor.shape.as_slice()).collect();
    let size = |dimension: &Dimension| match dimension {
        Dimension::Fixed(size) => usize::try_from(*size).ok(),
        Dimension::Symbol(_) => None,
    };
    let found = match shapes.as_slice() {
        [[_, channels, height, width]] => size(channels)
            .zip(size(height))
            .zip(size(width))
            .map(|((channels, height), width)| ImageShape { channels, height, width }),
        _ => None,
    };
    found.filter(|shape| matches!(shape.channels, 1 | 3)).ok_or_else(|| {
        format!(
            "{} does not take images of fixed size, [rows, channels, height, width] with 1 or 3 \
             channels: state the image of its rows by --image 3x64x64",
            file.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_of_an_image_has_two_or_three_sizes() {
        let shape = |channels, height, width| ImageShape { channels, height, width };
        assert_eq!("32x24".parse(), Ok(ImageArgument(shape(3, 32, 24))));
        assert_eq!("1x28x28".parse(), Ok(ImageArgument(shape(1, 28, 28))));
        assert_eq!(ImageArgument(shape(1, 28, 28)).to_string(), "1x28x28");
        for wrong in ["", "32", "2x8x8", "0x8", "8x8x8x8", "8x5000", "ax8"] {
            assert!(wrong.parse::<ImageArgument>().is_err(), "{wrong}");
        }
    }
}
