"""The 8 x 8 handwritten digits that scikit-learn carries: real data with no download."""

import torch

from fedsketch.conf.settings import DataSettings
from fedsketch.tasks.examples import Dataset, Examples

SPLIT_SEED = 0
TEST_SHARE = 0.2


def load(settings: DataSettings, seed: int) -> Dataset:
    """1,437 examples to train on and 360 to test on, the same for every seed; every class in the same share in both."""
    # scikit-learn takes a second to import, and only this data set needs it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images / 16.0, labels, test_size=TEST_SHARE, stratify=labels, random_state=SPLIT_SEED
    )

    def examples(inputs: object, targets: object) -> Examples:
        pixels = torch.as_tensor(inputs, dtype=torch.float32)
        return Examples(pixels.view(-1, 1, 8, 8), torch.as_tensor(targets, dtype=torch.int64))

    return Dataset("digits", examples(train_x, train_y), examples(test_x, test_y), classes=10)
