"""Forward and backward passes by hand, several times as fast as autograd.

base           the interface
dense          CCP and NCP; `closed_form` chooses the passes of a model
conv           ConvCCP: one matrix product for each row of a factor
conv_geometry  which pixels and taps meet, also at the border; images unfolded, gradients folded back
conv_memory    collapsed kernels, and the buffers of factors and products
"""
