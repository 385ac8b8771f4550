import numpy as np
import torch

from capsbench.analysis.plots.templates import plot_templates, read_templates
from capsbench.run.checkpoint import save_tensors


def test_a_template_is_shown_where_its_mask_lets_it_be(tmp_path):
    """Nine templates of 3x3: eight in the first row, one in the second, and grey where there is none."""
    templates, masks = torch.zeros(9, 1, 3, 3), torch.full((9, 1, 3, 3), -10.0)
    templates[1, 0, 0, 2], masks[1, 0, 0, 2] = 10.0, 10.0  # bright and shown
    templates[2, 0, 1, 1] = 10.0  # bright and hidden
    save_tensors(tmp_path / "model.pt", {"part_decoder.templates": templates, "part_decoder.masks": masks})
    picture = read_templates(tmp_path / "model.pt", gain=5.0)
    assert picture.shape == (2 * 4, 8 * 4)
    assert picture[1, 4 + 3] > 0.999
    assert picture[2, 8 + 2] < 0.001
    assert np.isclose(picture[:4, ::4], 0.5).all()  # frames
    assert np.isclose(picture[5:, 4:8], 0.5).all()  # no tenth template
    assert (picture[5:8, 1:4] < 0.001).all()


def test_a_study_without_such_a_network_says_so(finished, figure_of):
    (axis,) = figure_of(plot_templates, finished).axes
    assert axis.texts[0].get_text() == "nothing to show: no finished run of scae"
