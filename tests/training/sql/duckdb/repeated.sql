SELECT
  offer_id,
  COUNT(*) AS copies
FROM lake
GROUP BY
  offer_id
HAVING
  COUNT(*) > 1 OR offer_id IS NULL
