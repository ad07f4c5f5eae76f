SELECT
  pool,
  stratum,
  COUNT(*) AS offers
FROM pools
GROUP BY
  pool,
  stratum
