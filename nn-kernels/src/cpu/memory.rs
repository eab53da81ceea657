use std::marker::PhantomData;

use bytemuck::Zeroable;

use super::{Cpu, Real};
use crate::{DeviceError, Memory, Pod};

/// A cache line: what buffers are made of, for its alignment.
#[derive(Clone, Copy, bytemuck::Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory of the host, aligned to 64 bytes.
#[derive(Debug)]
pub struct Buffer<T> {
    lines: Box<[Line]>,
    len: usize,
    values: PhantomData<T>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn zeroed(len: usize) -> Result<Self, DeviceError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(DeviceError::OutOfMemory { bytes: usize::MAX })?;
        let lines = bytemuck::allocation::try_zeroed_slice_box(bytes.div_ceil(size_of::<Line>()))
            .map_err(|()| DeviceError::OutOfMemory { bytes })?;
        Ok(Self { lines, len, values: PhantomData })
    }

    /// How many values it holds.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// All of its bytes, of which the last may be beyond the last value.
    pub(crate) fn whole(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines)
    }

    /// All of its bytes, writable.
    pub(crate) fn whole_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.lines)
    }

    /// The values.
    #[inline(always)]
    pub fn as_slice(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// The values, writable.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl<E: Real> Memory for Cpu<E> {
    type Elem = E;
    type Wide = E;
    type Buffer<T: Pod> = Buffer<T>;
    type View<'a, T: Pod> = &'a [T];
    type ViewMut<'a, T: Pod> = &'a mut [T];

    fn alloc<T: Pod>(&self, len: usize) -> Result<Buffer<T>, DeviceError> {
        Buffer::zeroed(len)
    }
    #[inline(always)]
    fn view<T: Pod>(buffer: &Buffer<T>) -> Self::View<'_, T> {
        buffer.as_slice()
    }
    #[inline(always)]
    fn view_mut<T: Pod>(buffer: &mut Buffer<T>) -> Self::ViewMut<'_, T> {
        buffer.as_mut_slice()
    }
    fn upload<T: Pod>(&self, from: &[T], to: Self::ViewMut<'_, T>) {
        assert_eq!(from.len(), to.len(), "upload: lengths differ");
        to.copy_from_slice(from);
    }
    fn download<T: Pod>(&self, from: Self::View<'_, T>, to: &mut [T]) {
        assert_eq!(from.len(), to.len(), "download: lengths differ");
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn elements<'a>(wide: Self::View<'a, E>) -> Self::View<'a, E> {
        wide
    }
    #[inline(always)]
    fn elements_mut<'a>(wide: Self::ViewMut<'a, E>) -> Self::ViewMut<'a, E> {
        wide
    }
    #[inline(always)]
    fn wide<'a>(elements: Self::View<'a, E>) -> Self::View<'a, E> {
        elements
    }

    const HOST: bool = true;
    #[inline(always)]
    fn bring<'a, T: Pod>(&self, from: &'a [T], _: Self::ViewMut<'a, T>) -> Self::View<'a, T> {
        from
    }
    #[inline(always)]
    fn fetch<'a, T: Pod>(&self, from: Self::View<'a, T>, _: &'a mut [T]) -> &'a [T] {
        from
    }
    #[inline(always)]
    fn finish(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    #[inline(always)]
    fn empty<'a, T: Pod>() -> Self::View<'a, T> {
        &[]
    }
    #[inline(always)]
    fn empty_mut<'a, T: Pod>() -> Self::ViewMut<'a, T> {
        &mut []
    }
    #[inline(always)]
    fn len<T: Pod>(view: Self::View<'_, T>) -> usize {
        view.len()
    }
    #[inline(always)]
    fn len_mut<T: Pod>(view: &Self::ViewMut<'_, T>) -> usize {
        view.len()
    }
    #[inline(always)]
    fn split<'a, T: Pod>(view: Self::View<'a, T>, at: usize) -> (Self::View<'a, T>, Self::View<'a, T>) {
        view.split_at(at)
    }
    #[inline(always)]
    fn split_mut<'a, T: Pod>(
        view: Self::ViewMut<'a, T>,
        at: usize,
    ) -> (Self::ViewMut<'a, T>, Self::ViewMut<'a, T>) {
        view.split_at_mut(at)
    }
    #[inline(always)]
    fn reborrow<'b, T: Pod>(view: &'b mut Self::ViewMut<'_, T>) -> Self::ViewMut<'b, T> {
        view
    }
    #[inline(always)]
    fn read<'b, T: Pod>(view: &'b Self::ViewMut<'_, T>) -> Self::View<'b, T> {
        view
    }
    #[inline(always)]
    fn shorten<'b, 'a: 'b, T: Pod>(view: Self::View<'a, T>) -> Self::View<'b, T> {
        view
    }
    #[inline(always)]
    fn shorten_mut<'b, 'a: 'b, T: Pod>(view: Self::ViewMut<'a, T>) -> Self::ViewMut<'b, T> {
        view
    }
    #[inline(always)]
    fn freeze<'a, T: Pod>(view: Self::ViewMut<'a, T>) -> Self::View<'a, T> {
        view
    }
    #[inline(always)]
    fn cast<'a, T: Pod>(bytes: Self::View<'a, u8>) -> Self::View<'a, T> {
        bytemuck::cast_slice(bytes)
    }
    #[inline(always)]
    fn cast_mut<'a, T: Pod>(bytes: Self::ViewMut<'a, u8>) -> Self::ViewMut<'a, T> {
        bytemuck::cast_slice_mut(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type D = Cpu<f32>;

    #[test]
    fn buffers_are_zeroed_and_aligned() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let buffer = D::default().alloc::<f64>(len).unwrap();
            let view = D::view(&buffer);
            assert_eq!(view, vec![0.0; len]);
            assert_eq!(view.as_ptr() as usize % 64, 0);
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let error = D::default().alloc::<f64>(usize::MAX / 4).unwrap_err();
        assert_eq!(error, DeviceError::OutOfMemory { bytes: usize::MAX });
    }

    #[test]
    fn bytes_are_read_as_values() {
        let device = D::default();
        let mut bytes = device.alloc::<u8>(8).unwrap();
        D::cast_mut::<f32>(D::view_mut(&mut bytes)).copy_from_slice(&[1.5, -2.0]);
        assert_eq!(D::cast::<f32>(D::view(&bytes)), [1.5, -2.0]);
        assert_eq!(D::cast::<u32>(D::view(&bytes)), [1.5f32.to_bits(), (-2.0f32).to_bits()]);
    }

    #[test]
    #[should_panic(expected = "lengths differ")]
    fn upload_refuses_another_length() {
        let device = D::default();
        let mut buffer = device.alloc::<f32>(3).unwrap();
        device.upload(&[1.0f32], D::view_mut(&mut buffer));
    }
}
