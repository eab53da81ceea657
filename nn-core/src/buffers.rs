use nn_kernels::Device;

use crate::error::Error;
use crate::layer::Layer;
use crate::region::{Region, RegionRef};
use crate::signature::Signature;

/// The memory that a layer or module needs besides its input and output, for those who call
/// [`Module::forward`](crate::Module::forward) and [`Module::vjp`](crate::Module::vjp) themselves. A
/// [`Workspace`](crate::Workspace) has this and more, for a whole model.
pub struct Buffers<D: Device> {
    saved: D::Buffer<u8>,
    scratch: D::Buffer<u8>,
}

impl<D: Device> Buffers<D> {
    /// For calls of `L`, given `X`, on at most `batch` samples.
    pub fn new<L: Layer<X>, X: Signature>(device: &D, batch: usize) -> Result<Self, Error> {
        let bytes = |size: crate::Size| size.at(batch, size_of::<D::Elem>());
        Ok(Self {
            saved: device.alloc(bytes(L::SAVED))?,
            scratch: device.alloc(bytes(L::SCRATCH.max(L::VJP_SCRATCH)))?,
        })
    }

    /// What forward writes for the vjp, and its working memory.
    pub fn forward(&mut self) -> (Region<'_, D>, Region<'_, D>) {
        (Region::new(D::view_mut(&mut self.saved)), Region::new(D::view_mut(&mut self.scratch)))
    }

    /// What forward left, and the vjp's working memory.
    pub fn vjp(&mut self) -> (RegionRef<'_, D>, Region<'_, D>) {
        (RegionRef::new(D::view(&self.saved)), Region::new(D::view_mut(&mut self.scratch)))
    }
}
