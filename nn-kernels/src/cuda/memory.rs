use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::result;

use super::launch::Core;
use super::{Cuda, CudaReal};
use crate::{DeviceError, Memory, Pod};

/// Memory of the GPU.
pub struct Buffer<T> {
    core: Arc<Core>,
    at: u64,
    len: usize,
    values: PhantomData<T>,
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.core.free(self.at);
    }
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer<{}>({:#x}, {} values)", std::any::type_name::<T>(), self.at, self.len)
    }
}

/// A shared view of the GPU's memory.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, T> {
    at: u64,
    len: usize,
    values: PhantomData<&'a [T]>,
}

/// An exclusive view of the GPU's memory.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    at: u64,
    len: usize,
    values: PhantomData<&'a mut [T]>,
}

/// Whether there are whole values at the address.
#[track_caller]
fn check_cast<T>(at: u64, bytes: usize) {
    assert!(at.is_multiple_of(align_of::<T>() as u64), "cast: the bytes are not aligned as values");
    assert!(bytes.is_multiple_of(size_of::<T>()), "cast: {bytes} bytes are no whole values");
}

impl<'a, T: Pod> View<'a, T> {
    /// Where it starts on the device.
    pub(super) fn address(self) -> u64 {
        self.at
    }

    /// How many values it holds.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(self) -> usize {
        self.len
    }

    #[track_caller]
    fn split(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "split: {at} is past the end of {} values", self.len);
        let rest = self.at + (at * size_of::<T>()) as u64;
        (Self { len: at, ..self }, Self { at: rest, len: self.len - at, ..self })
    }
}

impl<'a, T: Pod> ViewMut<'a, T> {
    /// Where it starts on the device.
    pub(super) fn address(&self) -> u64 {
        self.at
    }

    /// How many values it holds.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its first values.
    #[track_caller]
    pub(super) fn first(self, len: usize) -> Self {
        assert!(len <= self.len, "the first {len} of {} values", self.len);
        Self { len, ..self }
    }

    /// A shared view of the same values.
    pub(super) fn read(&self) -> View<'_, T> {
        View { at: self.at, len: self.len, values: PhantomData }
    }
}

impl<E: CudaReal> Memory for Cuda<E> {
    type Elem = E;
    type Wide = E::Wide;
    type Buffer<T: Pod> = Buffer<T>;
    type View<'a, T: Pod> = View<'a, T>;
    type ViewMut<'a, T: Pod> = ViewMut<'a, T>;

    fn alloc<T: Pod>(&self, len: usize) -> Result<Buffer<T>, DeviceError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(DeviceError::OutOfMemory { bytes: usize::MAX })?;
        Ok(Buffer { core: self.core.clone(), at: self.core.alloc(bytes)?, len, values: PhantomData })
    }
    fn view<T: Pod>(buffer: &Buffer<T>) -> Self::View<'_, T> {
        View { at: buffer.at, len: buffer.len, values: PhantomData }
    }
    fn view_mut<T: Pod>(buffer: &mut Buffer<T>) -> Self::ViewMut<'_, T> {
        ViewMut { at: buffer.at, len: buffer.len, values: PhantomData }
    }
    fn upload<T: Pod>(&self, from: &[T], to: Self::ViewMut<'_, T>) {
        assert_eq!(from.len(), to.len, "upload: lengths differ");
        if !from.is_empty() {
            // SAFETY: so many values are at the address, which nobody else has a view of. Memory that is not pinned has
            // been read when the call returns.
            self.core.on_stream("copying to the device", |stream| unsafe {
                result::memcpy_htod_async(to.at, from, stream)
            });
        }
    }
    fn download<T: Pod>(&self, from: Self::View<'_, T>, to: &mut [T]) {
        assert_eq!(from.len, to.len(), "download: lengths differ");
        if !to.is_empty() {
            self.core.on_stream("copying from the device", |stream| {
                // SAFETY: so many values are at the address; the call is waited for, so that `to` has them.
                unsafe {
                    result::memcpy_dtoh_async(to, from.at, stream)?;
                    result::stream::synchronize(stream)
                }
            });
        }
    }

    fn elements<'a>(wide: Self::View<'a, E::Wide>) -> Self::View<'a, E> {
        assert!(!Self::MIXED, "elements are rounded");
        View { at: wide.at, len: wide.len, values: PhantomData }
    }
    fn elements_mut<'a>(wide: Self::ViewMut<'a, E::Wide>) -> Self::ViewMut<'a, E> {
        assert!(!Self::MIXED, "elements are rounded");
        ViewMut { at: wide.at, len: wide.len, values: PhantomData }
    }
    fn wide<'a>(elements: Self::View<'a, E>) -> Self::View<'a, E::Wide> {
        assert!(!Self::MIXED, "elements are rounded");
        View { at: elements.at, len: elements.len, values: PhantomData }
    }

    const HOST: bool = false;
    fn bring<'a, T: Pod>(&self, from: &'a [T], room: Self::ViewMut<'a, T>) -> Self::View<'a, T> {
        assert!(from.len() <= room.len, "bring: {} values, and room for {}", from.len(), room.len);
        let room = ViewMut { len: from.len(), ..room };
        let view = View { at: room.at, len: room.len, values: PhantomData };
        self.upload(from, room);
        view
    }
    fn fetch<'a, T: Pod>(&self, from: Self::View<'a, T>, room: &'a mut [T]) -> &'a [T] {
        assert!(from.len <= room.len(), "fetch: {} values, and room for {}", from.len, room.len());
        let room = &mut room[..from.len];
        self.download(from, room);
        room
    }
    fn together<R>(&self, work: impl FnOnce() -> R) -> R {
        struct Inside<'a>(&'a Core);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                self.0.leave();
            }
        }
        self.core.enter();
        let _inside = Inside(&self.core);
        work()
    }
    fn finish(&self) -> Result<(), DeviceError> {
        let fault = self.take_fault();
        match self.core.take_error() {
            Some(error) => Err(error),
            None => fault.map_or(Ok(()), Err),
        }
    }

    fn empty<'a, T: Pod>() -> Self::View<'a, T> {
        View { at: 0, len: 0, values: PhantomData }
    }
    fn empty_mut<'a, T: Pod>() -> Self::ViewMut<'a, T> {
        ViewMut { at: 0, len: 0, values: PhantomData }
    }
    fn len<T: Pod>(view: Self::View<'_, T>) -> usize {
        view.len
    }
    fn len_mut<T: Pod>(view: &Self::ViewMut<'_, T>) -> usize {
        view.len
    }
    fn split<'a, T: Pod>(view: Self::View<'a, T>, at: usize) -> (Self::View<'a, T>, Self::View<'a, T>) {
        view.split(at)
    }
    fn split_mut<'a, T: Pod>(
        view: Self::ViewMut<'a, T>,
        at: usize,
    ) -> (Self::ViewMut<'a, T>, Self::ViewMut<'a, T>) {
        assert!(at <= view.len, "split: {at} is past the end of {} values", view.len);
        let rest = view.at + (at * size_of::<T>()) as u64;
        (ViewMut { len: at, ..view }, ViewMut { at: rest, len: view.len - at, ..view })
    }
    fn reborrow<'b, T: Pod>(view: &'b mut Self::ViewMut<'_, T>) -> Self::ViewMut<'b, T> {
        ViewMut { at: view.at, len: view.len, values: PhantomData }
    }
    fn read<'b, T: Pod>(view: &'b Self::ViewMut<'_, T>) -> Self::View<'b, T> {
        view.read()
    }
    fn shorten<'b, 'a: 'b, T: Pod>(view: Self::View<'a, T>) -> Self::View<'b, T> {
        view
    }
    fn shorten_mut<'b, 'a: 'b, T: Pod>(view: Self::ViewMut<'a, T>) -> Self::ViewMut<'b, T> {
        view
    }
    fn freeze<'a, T: Pod>(view: Self::ViewMut<'a, T>) -> Self::View<'a, T> {
        View { at: view.at, len: view.len, values: PhantomData }
    }
    fn cast<'a, T: Pod>(bytes: Self::View<'a, u8>) -> Self::View<'a, T> {
        check_cast::<T>(bytes.at, bytes.len);
        View { at: bytes.at, len: bytes.len / size_of::<T>(), values: PhantomData }
    }
    fn cast_mut<'a, T: Pod>(bytes: Self::ViewMut<'a, u8>) -> Self::ViewMut<'a, T> {
        check_cast::<T>(bytes.at, bytes.len);
        ViewMut { at: bytes.at, len: bytes.len / size_of::<T>(), values: PhantomData }
    }
}
