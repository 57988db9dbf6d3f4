//! The product of groups of rows with a matrix each: the experts of a mixture, as transformers exports
//! them. It is an operator of that library, which libtorch does not have, so it follows from its
//! definition.

use tch::{Device, Kind, TchError, Tensor};

/// The operator's name in a graph.
pub(super) const NAME: &str = super::operators::GROUPED_PRODUCT;

/// Rows `ends[i − 1]..ends[i]` of `rows`, `[rows, terms]`, times `matrices[i]`, `[terms, columns]`. An end
/// that lies before the previous one or behind the last row is moved there, and rows of no group become
/// zeros.
pub(super) fn product(rows: &Tensor, matrices: &Tensor, ends: &Tensor) -> Result<Tensor, TchError> {
    let (count, _) = rows.size2()?;
    let (_, _, columns) = matrices.size3()?;
    let ends = Vec::<i64>::try_from(ends.f_to_kind(Kind::Int64)?.f_to_device(Device::Cpu)?)?;
    let (mut parts, mut start) = (Vec::new(), 0);
    for (group, end) in (0..).zip(ends) {
        let end = end.clamp(start, count);
        if end > start {
            let own = rows.f_narrow(0, start, end - start)?;
            parts.push(own.f_mm(&matrices.f_select(0, group)?)?);
            start = end;
        }
    }
    if start < count || parts.is_empty() {
        parts.push(Tensor::f_zeros([count - start, columns], (rows.f_kind()?, rows.device()))?);
    }
    Tensor::f_cat(&parts, 0)
}
