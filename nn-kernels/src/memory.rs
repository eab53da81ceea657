use crate::{DeviceError, Float, Pod};

/// A read-only view of a device's elements.
pub type View<'a, D> = <D as Memory>::View<'a, <D as Memory>::Elem>;
/// A writable view of a device's elements.
pub type ViewMut<'a, D> = <D as Memory>::ViewMut<'a, <D as Memory>::Elem>;
/// A read-only view of [wide](Memory::Wide) values.
pub type WideView<'a, D> = <D as Memory>::View<'a, <D as Memory>::Wide>;
/// A writable view of [wide](Memory::Wide) values.
pub type WideViewMut<'a, D> = <D as Memory>::ViewMut<'a, <D as Memory>::Wide>;

/// A device that can be had without further ado: what `Model::init` runs on.
pub trait Open: Sized {
    /// The device, as the environment asks for it.
    ///
    /// # Errors
    /// What the environment asks for is not there.
    fn open() -> Result<Self, DeviceError>;
}

/// A device's memory: owned buffers and the views cut from them.
///
/// Views are passed by value, as slices are. In implementations write the projected types
/// (`Self::View<'_, T>`), not `&[T]`, or lifetimes will not match.
pub trait Memory: Clone + Send + Sync + 'static {
    /// The element type that layers compute on: of activations, their gradients, and parameters as layers read them.
    type Elem: Float;
    /// The type of what must not be rounded to [`Elem`](Self::Elem): master weights, sums of gradients, an optimiser's
    /// moments, statistics, and what the host gives and is given. `Elem` itself, unless that has fewer bits than `f32`.
    type Wide: Float;
    /// Owned memory; zeroed when it is made, aligned to 64 bytes.
    type Buffer<T: Pod>: Send + Sync;
    /// A shared view.
    type View<'a, T: Pod>: Copy + Send + Sync;
    /// An exclusive view.
    type ViewMut<'a, T: Pod>: Send;

    /// Zeroed memory for `len` values.
    fn alloc<T: Pod>(&self, len: usize) -> Result<Self::Buffer<T>, DeviceError>;
    /// The whole buffer, shared.
    fn view<T: Pod>(buffer: &Self::Buffer<T>) -> Self::View<'_, T>;
    /// The whole buffer, exclusive.
    fn view_mut<T: Pod>(buffer: &mut Self::Buffer<T>) -> Self::ViewMut<'_, T>;
    /// Copies from the host. Panics if the lengths differ.
    fn upload<T: Pod>(&self, from: &[T], to: Self::ViewMut<'_, T>);
    /// Copies to the host. Panics if the lengths differ.
    fn download<T: Pod>(&self, from: Self::View<'_, T>, to: &mut [T]);

    /// Whether [`Elem`](Self::Elem) has fewer bits than [`Wide`](Self::Wide), so that parameters are kept twice.
    const MIXED: bool = size_of::<Self::Elem>() < size_of::<Self::Wide>();
    /// Wide values as elements, where the two are one type. Panics if the device is [`MIXED`](Self::MIXED).
    fn elements<'a>(wide: WideView<'a, Self>) -> View<'a, Self>;
    /// The same, writable.
    fn elements_mut<'a>(wide: WideViewMut<'a, Self>) -> ViewMut<'a, Self>;
    /// Elements as wide values, where the two are one type. Panics if the device is [`MIXED`](Self::MIXED).
    fn wide<'a>(elements: View<'a, Self>) -> WideView<'a, Self>;

    /// Whether the device's memory is the host's, so that nothing need be copied.
    const HOST: bool;
    /// The host's values as the device's: as they are, or copied to `room`, which may be empty if [`HOST`](Self::HOST).
    fn bring<'a, T: Pod>(&self, from: &'a [T], room: Self::ViewMut<'a, T>) -> Self::View<'a, T>;
    /// The device's values as the host's: as they are, or copied to `room`, which may be empty if [`HOST`](Self::HOST).
    fn fetch<'a, T: Pod>(&self, from: Self::View<'a, T>, room: &'a mut [T]) -> &'a [T];
    /// Does `work`, whose operations a device that is driven from afar may gather, and submit as one.
    fn together<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
    /// Waits until all that was asked of the device is done.
    ///
    /// # Errors
    /// The first thing that went wrong since it was last asked, if the operations themselves could not tell.
    fn finish(&self) -> Result<(), DeviceError>;

    /// A view of nothing.
    fn empty<'a, T: Pod>() -> Self::View<'a, T>;
    /// An exclusive view of nothing.
    fn empty_mut<'a, T: Pod>() -> Self::ViewMut<'a, T>;
    /// How many values a view holds.
    fn len<T: Pod>(view: Self::View<'_, T>) -> usize;
    /// How many values an exclusive view holds.
    fn len_mut<T: Pod>(view: &Self::ViewMut<'_, T>) -> usize;
    /// Cuts a view in two. Panics if `at` is out of range.
    fn split<'a, T: Pod>(view: Self::View<'a, T>, at: usize) -> (Self::View<'a, T>, Self::View<'a, T>);
    /// Cuts an exclusive view in two. Panics if `at` is out of range.
    fn split_mut<'a, T: Pod>(
        view: Self::ViewMut<'a, T>,
        at: usize,
    ) -> (Self::ViewMut<'a, T>, Self::ViewMut<'a, T>);
    /// A shorter-lived exclusive view of the same values.
    fn reborrow<'b, T: Pod>(view: &'b mut Self::ViewMut<'_, T>) -> Self::ViewMut<'b, T>;
    /// A shorter-lived shared view of the same values.
    fn read<'b, T: Pod>(view: &'b Self::ViewMut<'_, T>) -> Self::View<'b, T>;
    /// A shorter-lived view of the same values. Views are projections, of which the compiler does not know
    /// that a longer life serves where a shorter one is asked for.
    fn shorten<'b, 'a: 'b, T: Pod>(view: Self::View<'a, T>) -> Self::View<'b, T>;
    /// A shorter-lived exclusive view of the same values, in place of the longer-lived one.
    fn shorten_mut<'b, 'a: 'b, T: Pod>(view: Self::ViewMut<'a, T>) -> Self::ViewMut<'b, T>;
    /// Gives up exclusiveness for the rest of the view's life.
    fn freeze<'a, T: Pod>(view: Self::ViewMut<'a, T>) -> Self::View<'a, T>;
    /// Bytes read as values. Panics if they are misaligned or not a whole number of values.
    fn cast<'a, T: Pod>(bytes: Self::View<'a, u8>) -> Self::View<'a, T>;
    /// Bytes written as values. Panics if they are misaligned or not a whole number of values.
    fn cast_mut<'a, T: Pod>(bytes: Self::ViewMut<'a, u8>) -> Self::ViewMut<'a, T>;
}
