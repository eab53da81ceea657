use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};
use crate::ops::{Attention, AttentionGradients, AttentionSpec};

impl<E: CudaReal> Attention for Cuda<E> {
    fn attention(
        &self,
        _: &AttentionSpec,
        _: View<'_, E>,
        _: View<'_, E>,
        _: View<'_, E>,
        _: Option<View<'_, E>>,
        _: ViewMut<'_, E>,
        _: Option<ViewMut<'_, E>>,
    ) {
        unimplemented!("attention on `Cuda`: `Device::LACKS` lists it");
    }

    fn attention_vjp(
        &self,
        _: &AttentionSpec,
        _: View<'_, E>,
        _: View<'_, E>,
        _: View<'_, E>,
        _: Option<View<'_, E>>,
        _: View<'_, E>,
        _: View<'_, E>,
        _: View<'_, E>,
        _: AttentionGradients<ViewMut<'_, E>>,
        _: ViewMut<'_, E>,
    ) {
        unimplemented!("attention_vjp on `Cuda`: `Device::LACKS` lists it");
    }
}
