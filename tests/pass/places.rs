//! Where a module can stand.

use super::output;

/// A public module in a public module, with documentation on all of it.
pub mod public {
    use nn::{Dropout, Linear, ReLU, T, module, sequential};

    /// A block.
    #[module]
    pub struct Block<const D: usize, const H: usize> {
        /// Up.
        pub up: Linear<D, { D * H }>,
        down: Linear<{ D * H }, D>,
    }

    #[module]
    impl<const D: usize, const H: usize> Block<D, H> {
        /// What a block computes.
        fn forward(&self, x: T![D]) -> T![D] {
            x + self.down(self.up(x))
        }
    }

    sequential! {
        /// A chain.
        pub Net: [4] -> [2] =
            /// The first layer.
            first: Linear<4, 8>,
            ReLU,
            Block<8, 2>,
            Dropout<0.1>,
            #[init(nn::Zero)] last: Linear<8, 2>,
    }

    sequential! {
        /// A chain with parameters.
        pub Wide<const D: usize>: [4] -> [D] = Linear<4, { 2 * D }>, ReLU, Linear<{ 2 * D }, D>
    }

    /// A wide one.
    #[module]
    pub type Wide5 = Wide<5>;
}

#[test]
fn a_public_module_is_used_from_outside() {
    assert_eq!(output::<public::Net>(&[0.0; 4]), [0.0; 2]);
    assert_eq!(output::<public::Wide5>(&[0.0; 4]).len(), 5);
}

/// Parts that are private to a module, of a module that is not.
mod private {
    use nn::{Linear, T, module, sequential};

    sequential! { Hidden: [2] -> [2] = Linear<2, 2> }

    mod deeper {
        nn::sequential! { pub(in super::super) Shared: [2] -> [2] = nn::Linear<2, 2> }
    }

    #[module]
    pub(super) struct Net {
        hidden: Hidden,
        shared: deeper::Shared,
    }

    #[module]
    impl Net {
        fn forward(&self, x: T![2]) -> T![2] {
            self.shared(self.hidden(x))
        }
    }
}

#[test]
fn a_part_may_be_private() {
    assert_eq!(output::<private::Net>(&[1.0, 2.0]).len(), 2);
}

/// A struct in one module, its forward in another.
mod apart {
    use nn::{Linear, module};

    #[module]
    pub(super) struct Net<const D: usize> {
        fc: Linear<D, D>,
    }

    mod arithmetic {
        use nn::{T, module};

        #[module]
        impl<const D: usize> super::Net<D> {
            fn forward(&self, x: T![D]) -> T![D] {
                self.fc(x)
            }
        }
    }

    #[module]
    pub(super) type Net2 = Net<2>;
}

#[test]
fn forward_may_stand_in_another_module() {
    assert_eq!(output::<apart::Net2>(&[1.0, 2.0]).len(), 2);
}

#[test]
fn a_module_may_be_local_to_a_function() {
    use nn::{Linear, T, module, sequential};

    #[module]
    struct Local {
        fc: Linear<2, 3>,
    }

    #[module]
    impl Local {
        fn forward(&self, x: T![2]) -> T![3] {
            self.fc(x)
        }
    }

    sequential! { Chain: [2] -> [4] = Local, Linear<3, 4> }

    assert_eq!(output::<Chain>(&[1.0, 2.0]).len(), 4);
}

#[test]
fn a_macro_may_write_modules() {
    macro_rules! nets {
        ($($name:ident $n:literal)*) => {$(
            nn::sequential! { $name: [$n] -> [2] = nn::Linear<$n, 2> }
        )*};
    }
    nets! { One 1 Three 3 }
    assert_eq!(output::<One>(&[1.0]).len(), 2);
    assert_eq!(output::<Three>(&[1.0, 2.0, 3.0]).len(), 2);
}

#[test]
fn a_module_has_the_common_traits() {
    fn common<T: Clone + Default + std::fmt::Debug + Send + Sync + 'static>() -> String {
        format!("{:?}", T::default().clone())
    }
    assert_eq!(
        common::<private::Net>(),
        "Net { hidden: Hidden { 0: Linear<2, 2> }, shared: Shared { 0: Linear<2, 2> } }"
    );
    assert_eq!(common::<apart::Net2>(), "Net<2> { fc: Linear<2, 2> }");
}
