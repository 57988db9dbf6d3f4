//! Two tensors of a safetensors file: rows of numbers and their labels.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use super::file::read;
use super::npy::{Array, NumberKind};
use super::npz::select;
use super::{LoadError, Table, npy};

/// Rows of numbers and their labels. Without a name, the features are the only tensor besides the
/// labels.
pub(super) fn table(path: &Path, features: Option<&str>, labels: &str) -> Result<Table, LoadError> {
    let malformed = |why: String| LoadError::SafetensorsMalformed { path: path.to_owned(), why };
    let bytes = read(path)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| malformed(error.to_string()))?;
    let mut names: Vec<String> = file.names().into_iter().map(str::to_owned).collect();
    names.sort_unstable();
    let features = select(&names, features, labels)
        .map_err(|why| malformed(why.replace("npz:", "safetensors:").replace("array", "tensor")))?;
    let array = |name: &str| {
        let tensor = file.tensor(name).map_err(|error| malformed(error.to_string()))?;
        let (kind, size) = number_type(tensor.dtype()).ok_or_else(|| {
            malformed(format!("tensor `{name}` is {:?}; save it as float32", tensor.dtype()))
        })?;
        let place = path.join(name);
        let array = Array::new(&place, kind, size, tensor.shape(), tensor.data())?;
        Ok((place, array))
    };
    let ((x_place, x), (y_place, y)) = (array(features)?, array(labels)?);
    npy::table_of_arrays(&x_place, x, &y_place, &y)
}

/// The kind and the bytes of a number.
fn number_type(dtype: Dtype) -> Option<(NumberKind, usize)> {
    Some(match dtype {
        Dtype::BOOL => (NumberKind::Bool, 1),
        Dtype::U8 => (NumberKind::Unsigned, 1),
        Dtype::U16 => (NumberKind::Unsigned, 2),
        Dtype::U32 => (NumberKind::Unsigned, 4),
        Dtype::U64 => (NumberKind::Unsigned, 8),
        Dtype::I8 => (NumberKind::Signed, 1),
        Dtype::I16 => (NumberKind::Signed, 2),
        Dtype::I32 => (NumberKind::Signed, 4),
        Dtype::I64 => (NumberKind::Signed, 8),
        Dtype::F32 => (NumberKind::Float, 4),
        Dtype::F64 => (NumberKind::Float, 8),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use safetensors::serialize;
    use safetensors::tensor::TensorView;

    use crate::DataSource;
    use crate::data::{Cells, LoadError, load_table};

    fn source(
        folder: &tempfile::TempDir,
        arrays: &str,
        type_of_x: safetensors::Dtype,
    ) -> DataSource {
        let x: Vec<u8> = [1.0_f32, -2.0, 3.5, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let y: Vec<u8> = [7_i64, -1].iter().flat_map(|y| y.to_le_bytes()).collect();
        let shape = if type_of_x == safetensors::Dtype::F32 { vec![2, 2, 1] } else { vec![2, 4] };
        let views = [
            ("x", TensorView::new(type_of_x, shape, &x).unwrap()),
            ("y", TensorView::new(safetensors::Dtype::I64, vec![2], &y).unwrap()),
        ];
        let file = folder.path().join("rows.safetensors");
        std::fs::write(&file, serialize(views, None).unwrap()).unwrap();
        format!("safetensors:{}#{arrays}", file.display()).parse().unwrap()
    }

    #[test]
    fn two_tensors_are_rows_and_labels() {
        let folder = tempfile::tempdir().unwrap();
        let f32 = safetensors::Dtype::F32;
        let named = source(&folder, "x,y", f32);
        assert_eq!(named.to_string().parse(), Ok(named.clone()));
        let table = load_table(&named).unwrap();
        assert_eq!((table.rows(), table.columns()), (2, 2));
        assert_eq!(table.labels(), &Cells::Numbers(vec![7.0, -1.0]));
        assert_eq!(load_table(&source(&folder, "y", f32)).unwrap(), table);
    }

    #[test]
    fn other_types_missing_tensors_and_damaged_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (arrays, dtype, message) in [
            ("z", safetensors::Dtype::F32, "no tensor `z`; its tensors are: x, y"),
            ("x,y", safetensors::Dtype::BF16, "tensor `x` is BF16; save it as float32"),
            ("y,x", safetensors::Dtype::F32, "must be equal"),
        ] {
            let error = load_table(&source(&folder, arrays, dtype)).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let file = folder.path().join("rows.safetensors");
        std::fs::write(&file, [0xff; 20]).unwrap();
        let damaged: DataSource = format!("{}#x,y", file.display()).parse().unwrap();
        let error = load_table(&damaged).unwrap_err();
        assert!(matches!(error, LoadError::SafetensorsMalformed { .. }), "{error}");
    }
}
