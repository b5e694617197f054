/* The quantile function of the beta distribution with both parameters alike: schedules named "beta". */
#ifndef SLUICE_SAMPLE_BETA_QUANTILE_H
#define SLUICE_SAMPLE_BETA_QUANTILE_H

/* x, from 0 to 1, that a part of the distribution beta(a, a) lies below; a from 0.1 to 10. Within 1e-12. */
double beta_quantile(double part, double a);

#endif
